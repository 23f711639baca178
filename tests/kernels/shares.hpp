// What GPU threads do, done by a loop over threads, against the scalar reference.
#pragma once

#include "kernels/cuda/dispatch.hpp"
#include "tests/harness/catch.hpp"
#include "tests/kernels/arena.hpp"

namespace rondo::kernels::cuda {

// words_test.cpp compiles these, so that two cores share what takes longest.
extern template void float_move<Native<float>>(ReduceOp, const Move&, const Share&);
extern template void float_move<Native<double>>(ReduceOp, const Move&, const Share&);
extern template void float_move<Half>(ReduceOp, const Move&, const Share&);
extern template void float_move<BFloat16>(ReduceOp, const Move&, const Share&);
extern template void float_move<E4M3>(ReduceOp, const Move&, const Share&);
extern template void float_move<E5M2>(ReduceOp, const Move&, const Share&);

}  // namespace rondo::kernels::cuda

namespace rondo::kernels::test {

/// One case by `threads` threads, each of which calls move_share(move, share).
template <class MoveShare>
void check_shares(const Case& c, const std::vector<std::byte>& values, size_t threads,
                  const MoveShare& move_share) {
  Arena expected(c, values), actual(c, values);
  expected.run(scalar_move_function(c.type, c.op));
  actual.run([&](const Move& move) {
    // Any order of threads will do, so take an odd one.
    for (size_t t = threads; t-- > 0;) move_share(move, cuda::Share{t, threads});
  });
  const ptrdiff_t at = actual.difference(expected);
  if (at >= 0) FAIL(describe(c) << " threads " << threads << ": differs at byte " << at);
  SUCCEED();  // counted
}

}  // namespace rondo::kernels::test
