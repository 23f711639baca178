# A compiler cache, if there is one: decided when a build folder is first configured, because a launcher that changes rebuilds everything.
# -DCMAKE_CXX_COMPILER_LAUNCHER=... gives another; empty, none.
if(NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(RONDO_CCACHE ccache)
  mark_as_advanced(RONDO_CCACHE)
  if(RONDO_CCACHE)
    set(CMAKE_CXX_COMPILER_LAUNCHER ${RONDO_CCACHE} CACHE STRING "Runs the C++ compiler")
  else()
    set(CMAKE_CXX_COMPILER_LAUNCHER "" CACHE STRING "Runs the C++ compiler")
  endif()
endif()
