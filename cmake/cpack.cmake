# `cpack -G DEB` in a build folder: one Debian package with all that `cmake --install` installs. Included last, because cpack
# copies these variables when CPack is included.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME rondo)
set(CPACK_PACKAGE_CONTACT "the maintainers of rondo" CACHE STRING "Maintainer of the package: NAME <ADDRESS>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "collective communication between processes and threads")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION devel)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)  # dpkg-shlibdeps finds the packages that the programs need to run
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION
  "rondo runs all-reduce and the other collectives between the processes or threads of one machine.\nThe package holds the \
library, its headers, the programs that start, watch,\nmeasure and explain it, and a small data-parallel trainer.")
# All but the peers, which need an MPI, Gloo or NCCL.
set(CPACK_COMPONENTS_ALL Unspecified)
set(CPACK_DEB_COMPONENT_INSTALL OFF)
include(CPack)
