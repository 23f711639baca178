# cmake -DSOURCE=DIRECTORY -DWORK=DIRECTORY -P broken_cuda_test.cmake: a CUDA toolkit that is broken is no reason not to build for
# the host, unless CUDA was asked for.
file(REMOVE_RECURSE ${WORK})
file(WRITE ${WORK}/bin/nvcc "#!/bin/sh\necho cannot find -lcudart_static >&2\nexit 1\n")
file(CHMOD ${WORK}/bin/nvcc PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)

function(configure cuda)
  execute_process(
    COMMAND ${CMAKE_COMMAND} -S ${SOURCE} -B ${WORK}/${cuda} -DRONDO_CUDA=${cuda} -DRONDO_NVCC=${WORK}/bin/nvcc
    RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  set(result ${result} PARENT_SCOPE)
  string(REGEX REPLACE "[ \n]+" " " output "${output}")  # CMake wraps its warnings
  set(output "${output}" PARENT_SCOPE)
endfunction()

foreach(attempt first again)
  configure(AUTO)
  if(NOT result EQUAL 0 OR NOT output MATCHES "has CUDA: OFF" OR NOT output MATCHES "CMake Warning.*bin/nvcc cannot build a program")
    message(FATAL_ERROR "AUTO, ${attempt}: ${result}\n${output}")
  endif()
endforeach()
configure(ON)
if(result EQUAL 0)
  message(FATAL_ERROR "ON: it should fail\n${output}")
endif()
