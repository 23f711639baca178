// A coroutine with a stack of its own. It runs one function after the other, each until it pauses or
// ends, on one thread; the next function may have another.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <cstddef>
#include <memory>

#ifdef __SANITIZE_ADDRESS__
#include <dlfcn.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace rondo::trainer::cuda::testing {

/// Borrows nothing but what its functions use.
class Fibre {
 public:
  Fibre() : stack_(std::make_unique_for_overwrite<std::byte[]>(kStackBytes)) {}
  Fibre(const Fibre&) = delete;
  Fibre& operator=(const Fibre&) = delete;

  /// What resume() begins with. REQUIRES: the function before has ended.
  void set(void (*run)(void* owner, uint32_t argument), void* owner, uint32_t argument) {
    run_ = run;
    owner_ = owner;
    argument_ = argument;
    ended_ = false;
  }
  /// Runs on until the next pause() or the end; returns whether that was the end.
  bool resume() {
    void* frames = nullptr;
    leave(&frames, stack_.get(), kStackBytes);
    if (_setjmp(outside_) == 0) {  // unlike swapcontext(), no system call
      if (begun_) jump(inside_);
      begin();
    }
    arrive(frames, nullptr, nullptr);
    return ended_;
  }
  /// In its function.
  void pause() {
    void* frames = nullptr;
    leave(&frames, outside_stack_, outside_bytes_);
    if (_setjmp(inside_) == 0) jump(outside_);
    arrive(frames, &outside_stack_, &outside_bytes_);
  }

 private:
  static constexpr size_t kStackBytes = size_t{256} << 10;

  // The address sanitizer has to know which stack is in use. `frames` are its own, of the stack that
  // is left.
  static void leave([[maybe_unused]] void** frames, [[maybe_unused]] const void* to,
                    [[maybe_unused]] size_t bytes) {
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_start_switch_fiber(frames, to, bytes);
#endif
  }
  /// Sets the stack that was left for this one.
  static void arrive([[maybe_unused]] void* frames, [[maybe_unused]] const void** from,
                     [[maybe_unused]] size_t* bytes) {
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(frames, from, bytes);
#endif
  }

  // The address sanitizer's _longjmp() takes all frames of the stack for ended: it asks the kernel
  // for the signal stack, clears the shadow of 256 KiB, and no longer knows which bytes around that
  // stack's arrays are nobody's. So there the C library's own, which the sanitizer does not see.
  static void jump(jmp_buf& to) {
#ifdef __SANITIZE_ADDRESS__
    // No [[noreturn]] in the type: before a call of such a function the compiler tells the sanitizer.
    static const auto own =
        reinterpret_cast<void (*)(jmp_buf, int)>(dlsym(dlopen("libc.so.6", RTLD_LAZY), "_longjmp"));
    own(to, 1);
#else
    _longjmp(to, 1);
#endif
  }

  void begin() {
    begun_ = true;
    getcontext(&context_);
    context_.uc_stack.ss_sp = stack_.get();
    context_.uc_stack.ss_size = kStackBytes;
    context_.uc_link = nullptr;
    const auto self = reinterpret_cast<uintptr_t>(this);
    makecontext(&context_, reinterpret_cast<void (*)()>(&Fibre::enter), 2,
                static_cast<unsigned>(self >> 32), static_cast<unsigned>(self));
    setcontext(&context_);
  }
  static void enter(unsigned high, unsigned low) {
    auto* const fibre =
        reinterpret_cast<Fibre*>(static_cast<uintptr_t>(high) << 32 | static_cast<uintptr_t>(low));
    arrive(nullptr, &fibre->outside_stack_, &fibre->outside_bytes_);
    while (true) {
      fibre->run_(fibre->owner_, fibre->argument_);
      fibre->ended_ = true;
      fibre->pause();
    }
  }

  const std::unique_ptr<std::byte[]> stack_;
  ucontext_t context_{};  // of the beginning; not in a frame, which would never be left
  jmp_buf inside_, outside_;
  const void* outside_stack_ = nullptr;  // as the sanitizer says
  size_t outside_bytes_ = 0;
  void (*run_)(void*, uint32_t) = nullptr;
  void* owner_ = nullptr;
  uint32_t argument_ = 0;
  bool begun_ = false, ended_ = true;
};

}  // namespace rondo::trainer::cuda::testing
