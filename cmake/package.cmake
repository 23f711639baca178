# The rules of cmake --install: both forms of the library, the headers, the programs, and the files for find_package and pkg-config.
# Nothing in them names the prefix, so the installation may be moved; the programs contain rondo statically.
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/rondo)
# Two files, because the static form needs other packages' development files, and the shared one does not.
set_target_properties(rondo_shared PROPERTIES EXPORT_NAME shared)
set_target_properties(rondo PROPERTIES EXPORT_NAME static)
install(TARGETS rondo_shared EXPORT rondo_shared_targets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS rondo EXPORT rondo_static_targets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
foreach(form shared static)
  install(EXPORT rondo_${form}_targets NAMESPACE rondo:: FILE rondo-${form}.cmake DESTINATION ${package_dir})
endforeach()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/rondo DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp")

list(JOIN RONDO_NEEDS_MODULES " " RONDO_NEEDS_TEXT)
# In a separate folder: CMake looks for packages beside every bin/ in PATH, and this one is incomplete.
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/rondoConfig.cmake.in ${PROJECT_BINARY_DIR}/package/rondoConfig.cmake
  INSTALL_DESTINATION ${package_dir} NO_SET_AND_CHECK_MACRO)
# Before 1.0 every minor version may break what the last one promised.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/package/rondoConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/package/rondoConfig.cmake ${PROJECT_BINARY_DIR}/package/rondoConfigVersion.cmake
  DESTINATION ${package_dir})

set(pkgconfig_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
file(RELATIVE_PATH prefix_from_pkgconfig /prefix/${pkgconfig_dir} /prefix)
# As flags, because Requires.private would need the development files of all dependencies of these modules.
list(JOIN RONDO_NEEDS_LDFLAGS " " pkgconfig_needs)
if(RONDO_HAS_CUDA)
  string(APPEND pkgconfig_needs " -L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -lrt -ldl")
endif()
configure_file(${CMAKE_CURRENT_LIST_DIR}/rondo.pc.in ${PROJECT_BINARY_DIR}/rondo.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/rondo.pc DESTINATION ${pkgconfig_dir})

if(RONDO_TRAINER)  # what rondo-train reads without --data
  cmake_path(GET RONDO_DEFAULT_TEXT PARENT_PATH text_dir)
  cmake_path(GET RONDO_DEFAULT_TEXT FILENAME text_name)
  install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/${text_dir} RENAME ${text_name})
endif()
# The page that explains, where scripts/page has built it: for rondo-plan --page, and for people.
install(FILES ${PROJECT_SOURCE_DIR}/build/explain.html DESTINATION ${CMAKE_INSTALL_DATADIR}/rondo OPTIONAL)
set(RONDO_PROGRAMS rondo-run rondo-status rondo-perf rondo-plan rondo-train)
set(RONDO_PEERS rondo-perf-mpi rondo-perf-gloo rondo-perf-nccl)  # need the peers' libraries
foreach(program ${RONDO_PROGRAMS})
  if(TARGET ${program})
    install(TARGETS ${program} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  endif()
endforeach()
foreach(program ${RONDO_PEERS})
  if(TARGET ${program})
    install(TARGETS ${program} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT peers EXCLUDE_FROM_ALL)
  endif()
endforeach()
foreach(link ${RONDO_PERF_LINKS})
  if(SKBUILD)  # a wheel would hold a copy of the program for each
    break()
  endif()
  install(FILES $<TARGET_FILE_DIR:rondo-perf>/${link} DESTINATION ${CMAKE_INSTALL_BINDIR})
endforeach()

include(${CMAKE_CURRENT_LIST_DIR}/documents.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/manual.cmake)
if(PROJECT_IS_TOP_LEVEL)
  include(${CMAKE_CURRENT_LIST_DIR}/cpack.cmake)
endif()
