# Pages for man(1), and completion in bash and zsh, from what the programs' --help prints: built with everything, and installed.
# Those of the peers, like the peers themselves, only by `cmake --install --component peers`.
find_package(Python3 COMPONENTS Interpreter)
if(NOT Python3_Interpreter_FOUND OR RONDO_SANITIZE OR CMAKE_CROSSCOMPILING)
  message(STATUS "manual: none without Python, with sanitizers, or for another machine")
  return()
endif()

set(programs)
foreach(program ${RONDO_PROGRAMS} ${RONDO_PEERS})
  if(TARGET ${program})
    list(APPEND programs ${program})
  endif()
endforeach()
list(TRANSFORM programs REPLACE "(.+)" "$<TARGET_FILE:\\1>" OUTPUT_VARIABLE files)
list(TRANSFORM RONDO_PERF_LINKS PREPEND "--alias=rondo-perf=" OUTPUT_VARIABLE aliases)
set(manual ${PROJECT_BINARY_DIR}/manual)
file(GLOB scripts ${CMAKE_CURRENT_LIST_DIR}/manual/*.py)
add_custom_command(OUTPUT ${manual}/made
  COMMAND ${Python3_EXECUTABLE} -B ${CMAKE_CURRENT_LIST_DIR}/manual/manual.py --version ${PROJECT_VERSION}
          --readme ${PROJECT_SOURCE_DIR}/README.md --out ${manual} ${aliases} ${files}
  COMMAND ${CMAKE_COMMAND} -E touch ${manual}/made
  DEPENDS ${programs} ${scripts} ${PROJECT_SOURCE_DIR}/README.md
  COMMENT "Pages and completions" VERBATIM)
add_custom_target(rondo_manual ALL DEPENDS ${manual}/made)

foreach(program ${programs})
  set(names ${program})
  set(part)
  if(program STREQUAL "rondo-perf")
    list(APPEND names ${RONDO_PERF_LINKS})
  elseif(program IN_LIST RONDO_PEERS)
    set(part COMPONENT peers EXCLUDE_FROM_ALL)
  endif()
  foreach(name ${names})
    install(FILES ${manual}/man1/${name}.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 ${part})
    install(FILES ${manual}/bash/${name} DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions ${part})
  endforeach()
  install(FILES ${manual}/zsh/_${program} DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions ${part})
endforeach()
