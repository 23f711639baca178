# What every target of rondo is compiled with: rondo_options, an interface target.
find_package(Threads REQUIRED)

add_library(rondo_options INTERFACE)
target_include_directories(rondo_options INTERFACE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
target_compile_options(rondo_options INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual
  -ffp-contract=off  # results must not depend on whether the compiler fuses (DESIGN section 5)
  $<$<BOOL:${RONDO_WERROR}>:-Werror>)
target_link_libraries(rondo_options INTERFACE Threads::Threads)

if(RONDO_SANITIZE)
  target_compile_options(rondo_options INTERFACE -fsanitize=${RONDO_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(rondo_options INTERFACE -fsanitize=${RONDO_SANITIZE})
endif()
