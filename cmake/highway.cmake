# Google Highway, for loops that exist once per instruction set: hwy::hwy, and which instruction sets are left out.
find_package(HWY QUIET)
if(NOT TARGET hwy::hwy)
  find_package(PkgConfig REQUIRED)
  pkg_check_modules(HWY REQUIRED IMPORTED_TARGET libhwy)
  add_library(hwy::hwy ALIAS PkgConfig::HWY)
endif()

# SSE4 is old enough. Vectors of unknown length cannot be members or array elements, which kernels/host/lanes-inl.hpp
# needs. Instrumenting the loops takes many minutes for every instruction set, so with sanitizers x86 has AVX2's only,
# and so it is where the source is only looked at: they are all one source.
option(RONDO_ONE_INSTRUCTION_SET "On x86 nothing but AVX2" OFF)
mark_as_advanced(RONDO_ONE_INSTRUCTION_SET)
set(disabled HWY_SSSE3 HWY_SVE HWY_SVE2 HWY_SVE_256 HWY_SVE2_128 HWY_RVV)
if(RONDO_SANITIZE OR RONDO_ONE_INSTRUCTION_SET)
  list(APPEND disabled HWY_SSE4 HWY_AVX3)
endif()
list(JOIN disabled "|" RONDO_HWY_DISABLED)
