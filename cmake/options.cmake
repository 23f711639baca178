# rondo_options: an interface target with the flags of every target of rondo.
find_package(Threads REQUIRED)

add_library(rondo_options INTERFACE)
target_include_directories(rondo_options INTERFACE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)

# The host compiler's flags. Guarded by language: nvcc takes its own from cmake/cuda.cmake and would refuse these.
set(rondo_cxx_flags
  -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual
  -ffp-contract=off  # results must not depend on whether the compiler fuses
  -fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=  # a broken invariant names a file of the tree, not a folder of the machine that built it
  $<$<BOOL:${RONDO_WERROR}>:-Werror>)
target_compile_options(rondo_options INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${rondo_cxx_flags}>")
target_link_libraries(rondo_options INTERFACE Threads::Threads)

if(RONDO_SANITIZE MATCHES "undefined")
  # The address sanitizer also reports uses of null pointers and overruns of objects; checking them twice takes a third more
  # time to compile.
  set(rondo_less_undefined -fno-sanitize=null,object-size)
endif()
# ASan's checks as calls, not in line: the same checks, and a fifth less to compile. For sources that are large and seldom compute: loops
# over data take up to four times as long.
if(RONDO_SANITIZE MATCHES "address" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  set(RONDO_CHECKS_AS_CALLS $<$<COMPILE_LANGUAGE:CXX>:--param=asan-instrumentation-with-call-threshold=0>)
endif()
if(RONDO_SANITIZE)
  target_compile_options(rondo_options INTERFACE
    "$<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${RONDO_SANITIZE};${rondo_less_undefined};-fno-omit-frame-pointer;-fno-sanitize-recover=all>")
  target_link_options(rondo_options INTERFACE -fsanitize=${RONDO_SANITIZE})
  set(rondo_quick_flags -O0 -fno-sanitize=undefined)
else()
  set(rondo_quick_flags $<$<CONFIG:Release>:-O1>)
endif()
target_compile_options(rondo_options INTERFACE
  "$<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:$<TARGET_PROPERTY:RONDO_QUICK>>>:${rondo_quick_flags}>")

# rondo_quick_to_compile(TARGET...): for targets that mostly call large header-only libraries (flags, JSON, Catch2), or, under
# sanitizers, only drive the checked code. With optimisation and checks for undefined behaviour they take four times as long to compile,
# with optimisation half as long again, for speed that is not needed.
function(rondo_quick_to_compile)
  set_target_properties(${ARGN} PROPERTIES RONDO_QUICK ON)
endfunction()
