// What the page calls in WebAssembly: it allocates, writes its request there, and reads the answer, which begins with
// its length in four bytes. The caller frees both. One thread, one call at a time.
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "explain/answer.hpp"

extern "C" {

__attribute__((export_name("explain_alloc"))) void* explain_alloc(uint32_t bytes) {
  return std::malloc(bytes);
}

__attribute__((export_name("explain_free"))) void explain_free(void* memory) { std::free(memory); }

__attribute__((export_name("explain_answer"))) void* explain_answer(const char* request,
                                                                    uint32_t bytes) {
  const std::string text = rondo::explain::answer({request, bytes});
  const auto length = static_cast<uint32_t>(text.size());
  auto* const result = static_cast<char*>(std::malloc(sizeof length + text.size()));
  std::memcpy(result, &length, sizeof length);
  std::memcpy(result + sizeof length, text.data(), text.size());
  return result;
}

}  // extern "C"
