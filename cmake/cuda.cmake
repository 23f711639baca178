# Optional CUDA. Sets RONDO_HAS_CUDA; where it is ON, the CUDA language is enabled and rondo_options carries nvcc's flags,
# so a target with .cu sources links rondo_options like any other:
#
#   if(RONDO_HAS_CUDA)
#     add_library(rondo_device OBJECT cuda_engine.cu)
#     target_link_libraries(rondo_device PRIVATE rondo_options)
#   endif()
#
# Include it from the root, after cmake/options.cmake: enable_language() has to run there.
set(RONDO_CUDA AUTO CACHE STRING "Compile the .cu files: ON, OFF, or AUTO (where nvcc is found)")
set_property(CACHE RONDO_CUDA PROPERTY STRINGS AUTO ON OFF)
set(RONDO_HAS_CUDA OFF)

if(NOT RONDO_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "RONDO_CUDA is '${RONDO_CUDA}': give ON, OFF or AUTO")
endif()
# The sanitizers watch host code only, so a sanitized build leaves the device out unless RONDO_CUDA is ON.
if(RONDO_CUDA STREQUAL "OFF" OR (RONDO_CUDA STREQUAL "AUTO" AND RONDO_SANITIZE))
  return()
endif()

if(NOT CMAKE_CUDA_COMPILER)
  # Packages install nvcc outside PATH.
  find_program(RONDO_NVCC nvcc PATHS ENV CUDA_HOME ENV CUDA_PATH /usr/local/cuda PATH_SUFFIXES bin)
  mark_as_advanced(RONDO_NVCC)
  if(NOT RONDO_NVCC)
    if(RONDO_CUDA STREQUAL "ON")
      message(FATAL_ERROR "RONDO_CUDA is ON, but no nvcc is in PATH, CUDA_HOME or /usr/local/cuda: install it or "
                          "pass -DCMAKE_CUDA_COMPILER=/path/to/nvcc")
    endif()
    message(STATUS "CUDA: no nvcc, host only")
    return()
  endif()
  if(RONDO_CUDA STREQUAL "AUTO")
    # Tried in a project of its own: a toolkit that lacks its libraries fails there, and not this configuration.
    include(CheckLanguage)
    set(ENV{CUDACXX} ${RONDO_NVCC})
    check_language(CUDA)
    if(NOT CMAKE_CUDA_COMPILER)
      unset(CMAKE_CUDA_COMPILER CACHE)  # tried again next time
      message(WARNING "CUDA: ${RONDO_NVCC} cannot build a program, so this build is for the host only. Repair the toolkit "
                      "(-DRONDO_CUDA=ON shows what it says), or pass -DRONDO_CUDA=OFF")
      return()
    endif()
  endif()
  set(CMAKE_CUDA_COMPILER ${RONDO_NVCC} CACHE FILEPATH "nvcc")
endif()

# Compiles for the GPUs at hand. Without one: Hopper's machine code, and PTX for later GPUs.
if(NOT CMAKE_CUDA_ARCHITECTURES)
  set(architectures 90)
  file(GLOB devices /dev/nvidia[0-9]*)
  if(devices)
    set(architectures native)
  endif()
  set(CMAKE_CUDA_ARCHITECTURES ${architectures} CACHE STRING "GPU architectures to compile for")
endif()
enable_language(CUDA)
# The static runtime opens the driver at the first call: a program with it starts on any machine, and gets an error there if the
# driver is missing.
find_package(CUDAToolkit REQUIRED)

set(CMAKE_CUDA_VISIBILITY_PRESET hidden)  # CMAKE_CXX_VISIBILITY_PRESET does not cover .cu
# CMake 3.25.1 knows no CUDA 20. Targets inherit CXX_STANDARD for CUDA; as no requirement it is dropped, and passed by hand.
set(CMAKE_CUDA_STANDARD_REQUIRED OFF)
set(rondo_cuda_flags
  -std=c++20
  # CPU and GPU agree bit for bit, so the device must not fuse either; nvcc's defaults are set explicitly.
  -fmad=false -ftz=false -prec-div=true -prec-sqrt=true
  --expt-relaxed-constexpr  # constexpr functions are shared by host and device
  -Xcompiler=-Wall,-Wextra,-Wshadow,-ffp-contract=off  # not -Wpedantic: nvcc's own output is not pedantic
  $<$<BOOL:${RONDO_WERROR}>:-Werror=all-warnings>)
target_compile_options(rondo_options INTERFACE "$<$<COMPILE_LANGUAGE:CUDA>:${rondo_cuda_flags}>")
set(RONDO_HAS_CUDA ON)
message(STATUS "CUDA: ${CMAKE_CUDA_COMPILER} ${CMAKE_CUDA_COMPILER_VERSION}, architectures ${CMAKE_CUDA_ARCHITECTURES}")
