// Convolutions (see ../host/convolution.hpp) as matrix products of which one operand, the patches, is
// nowhere in memory (patches.hpp): forward, and the gradients of input and weight. Biases' gradients
// are batch_norm.hpp's sums of channels.
//
// A block makes a tile of the result. It passes over the sum in steps of kDepth, for which both
// operands' tiles lie in shared memory, as rows along the sum (tile_sums.hpp). While it multiplies
// one step's tiles it gathers the next one's: in parts, each of which a thread has read before it
// multiplies and writes to shared memory afterwards. What a row of the patches stands for is divided
// by one thread for all of the block, what a column stands for by those that gather it.
//
// What bounds these kernels, by counting. In device memory x, w and y pass once, if the L2 cache holds
// the images of the tiles under way: with C input channels, O output channels and k x k taps that
// is 2 C O k k operations for 2 (C + O) bytes per pixel in two bytes. A number of the patches is read
// from the caches for every tile of kM output channels, and by an instruction of its own: under a
// tap neighbours begin anywhere, so that no two are aligned. By machine code for sm_90 a warp's step
// in bfloat16 with kM = 64 has 316 instructions for 16 products (mma), that of the weight's kernel 626
// for 32. A multiprocessor begins four per cycle, which makes five cycles per product, where an H100's
// tensor cores take one. In float such a step has 1,387 instructions for 1,024 multiplications.
#pragma once

#include <algorithm>

#include "trainer/layers/cuda/patches.hpp"
#include "trainer/layers/cuda/tile_sums.hpp"

namespace rondo::trainer::cuda {

/// Neighbours along the sum that a thread writes to shared memory as a word.
template <class T>
inline constexpr uint32_t kNeighbours = sizeof(T) == 2 ? 2 : 1;

/// y[samples x planes x pixels] = weights[planes x rows of patches] patches. Forward: w, and patches
/// of x. The input's gradient: of a class of input pixels, w transposed and patches of dy.
template <class T, uint32_t kM>
struct ConvolutionKernel {
  static constexpr uint32_t kN = 128, kDepth = 32, kChunks = kDepth / kTileChunk;
  static constexpr uint32_t kStride = kDepth + kPack<T>;
  static constexpr uint32_t kThreads = kM == 64 ? 256 : 128;
  static constexpr uint32_t kBlocksAtOnce = kM == 64 ? 2 : 3;
  static constexpr uint32_t kOfColumn = kThreads / kN;  // threads that gather a column
  using Tile = TileSums<T, kThreads, kM, kN, kStride>;

  struct TapWeights {
    const T* data;
    uint32_t of_plane;  // of the result: from one's to the next one's
    SpotStrides of_tap;
  };
  struct Output {
    T* data;
    uint32_t planes;
    size_t sample_size, plane_size;
    SpotStrides in_plane;
    const T* bias;  // [planes]; or null
    bool relu;      // NaN stays one
  };

  Patches patches;
  const T* images;
  TapWeights weights;
  Output result;
  size_t elements;  // of images or the result, what is more
  Divisor by_tiles_down = Divisor(ceil_div(result.planes, kM));

  /// Tiles of the same columns are neighbours: they read the same images.
  Grid grid() const {
    return {.x =
                static_cast<uint32_t>(ceil_div(patches.columns, kN) * ceil_div(result.planes, kM))};
  }
  size_t shared_bytes() const {
    return std::max(2 * kStage * sizeof(T), kM * Tile::kOutStride * sizeof(Wide<T>)) +
           2 * kDepth * sizeof(PatchRow);
  }

  template <class Block>
  RONDO_DEVICE void run(Block& block) const {
    const auto [across, down] = by_tiles_down.divide(block.index().x);
    const uint32_t thread = block.thread(), column = across * kN + thread % kN;
    const bool exists = column < patches.columns;
    const Spot pixel = exists ? patches.pixel(column) : Spot{};
    const Gather gather(*this, thread, down * kM,
                        exists ? patches.column_of(pixel) : Patches::no_column());
    auto* const rows = block.template shared<PatchRow>();
    T* const stages = reinterpret_cast<T*>(rows + 2 * kDepth);
    const auto describe = [&](uint32_t step) {
      if (thread >= kDepth) return;
      rows[step % 2 * kDepth + thread] = patches.row_of(step * kDepth + thread, weights.of_tap);
    };
    const auto in_chunks = [&](const auto& f) { unrolled<kChunks>(f); };
    const auto steps = static_cast<uint32_t>(ceil_div(patches.rows, kDepth));
    describe(0);
    describe(1);
    block.sync();
    in_chunks([&](uint32_t chunk) { gather.write(chunk, gather.read(rows, 0, chunk), stages); });
    block.sync();
    Tile sums;
    for (uint32_t step = 0; step < steps; ++step) {
      const T* const now = stages + step % 2 * kStage;
      T* const next = stages + (step + 1) % 2 * kStage;
      const bool goes_on = step + 1 < steps;
      in_chunks([&](uint32_t chunk) {
        typename Gather::Carried part{};
        if (goes_on) part = gather.read(rows, step + 1, chunk);
        after_reads();
        sums.add(block, now + chunk * kTileChunk, now + kM * kStride + chunk * kTileChunk);
        if (goes_on) gather.write(chunk, part, next);
      });
      describe(step + 2);  // in place of this step's, which were read before the last meeting
      block.sync();
    }
    auto* const out = reinterpret_cast<Wide<T>*>(stages);
    sums.store(block, out);
    block.sync();
    if (exists) write(pixel, down * kM, thread, out);
  }

 private:
  static constexpr uint32_t kStage = (kM + kN) * kStride;

  /// What a thread carries to shared memory: of the patches a column, or half of one; of the weights
  /// some neighbours in every kRowsAtOnce-th row. Two rows of a warp are four apart, in other banks.
  struct Gather {
    static constexpr uint32_t kWide = kNeighbours<T>, kLanes = kDepth / kWide;
    static constexpr uint32_t kRowsAtOnce = kThreads / kLanes;
    static constexpr uint32_t kRows = kM / kRowsAtOnce / kChunks;  // of the thread, in a part
    static constexpr uint32_t kLength = kTileChunk / kOfColumn;    // of its column
    struct Carried {
      Pack<T, kWide> weights[kRows];
      Pack<T, kPack<T>> column[kLength / kPack<T>];
    };

    const ConvolutionKernel& kernel;
    PatchColumn column;
    uint32_t first_plane, row, place, in_tile, in_chunk;

    RONDO_DEVICE Gather(const ConvolutionKernel& of, uint32_t thread, uint32_t first,
                        const PatchColumn& at)
        : kernel(of),
          column(at),
          first_plane(first),
          row(thread / 128 * (128 / kLanes) + thread / kWarp % 4 + thread % kWarp / kLanes * 4),
          place(thread % kLanes * kWide),
          in_tile(thread % kN),
          in_chunk(thread / kN * kLength) {}

    RONDO_DEVICE Carried read(const PatchRow* rows, uint32_t step, uint32_t chunk) const {
      Carried part;
      rows += step % 2 * kDepth;
      unrolled<kLength>([&](uint32_t i) {
        part.column[i / kPack<T>].at[i % kPack<T>] =
            kernel.patches.element(kernel.images, column, rows[chunk * kTileChunk + in_chunk + i]);
      });
      unrolled<kWide>([&](uint32_t i) {
        const bool exists = step * kDepth + place + i < kernel.patches.rows;
        unrolled<kRows>([&](uint32_t r) {
          const uint32_t plane = first_plane + row + (chunk * kRows + r) * kRowsAtOnce;
          part.weights[r].at[i] = read_inside(
              kernel.weights.data, rows[place + i].weight + plane * kernel.weights.of_plane,
              exists && plane < kernel.result.planes);
        });
      });
      return part;
    }
    RONDO_DEVICE void write(uint32_t chunk, const Carried& part, T* stage) const {
      unrolled<kRows>([&](uint32_t r) {
        store(part.weights[r], stage + (row + (chunk * kRows + r) * kRowsAtOnce) * kStride + place);
      });
      T* const to = stage + (kM + in_tile) * kStride + chunk * kTileChunk + in_chunk;
      unrolled<kLength / kPack<T>>([&](uint32_t i) { store(part.column[i], to + i * kPack<T>); });
    }
  };

  /// A column of the tile, or every second element.
  RONDO_DEVICE void write(const Spot& pixel, uint32_t first_plane, uint32_t thread,
                          const Wide<T>* sums) const {
    T* const to =
        result.data + pixel.plane * result.sample_size + result.in_plane.at({0, pixel.y, pixel.x});
    for (uint32_t m = thread / kN; m < kM && first_plane + m < result.planes; m += kOfColumn) {
      const uint32_t plane = first_plane + m;
      Wide<T> sum = sums[m * Tile::kOutStride + thread % kN];
      if (result.bias != nullptr) sum += widen(result.bias[plane]);
      to[plane * result.plane_size] = narrow<T>(result.relu && sum < 0 ? Wide<T>{0} : sum);
    }
  }
};

/// y[samples x out_channels x out_height x out_width] = w * x + bias, where there is one, then
/// max(0, y) when `relu`.
template <class T, uint32_t kM>
ConvolutionKernel<T, kM> convolution_kernel(const ConvolutionShape& s, const T* x, const T* w,
                                            const T* bias, bool relu, T* y) {
  const auto of = [](size_t value) { return static_cast<uint32_t>(value); };
  return {.patches = input_patches(s),
          .images = x,
          .weights = {.data = w,
                      .of_plane = of(s.patch()),
                      .of_tap = {0, of(s.kernel * s.kernel), of(s.kernel), 1}},
          .result = {.data = y,
                     .planes = of(s.out_channels),
                     .sample_size = s.out_size(),
                     .plane_size = s.out_pixels(),
                     .in_plane = {0, 0, of(s.out_width()), 1},
                     .bias = bias,
                     .relu = relu},
          .elements = s.samples * std::max(s.in_size(), s.out_size())};
}

/// Of dx[samples x in_channels x height x width] the pixels of a class.
template <class T, uint32_t kM>
ConvolutionKernel<T, kM> convolution_input_kernel(const ConvolutionShape& s,
                                                  const InputClass& which, const T* dy, const T* w,
                                                  T* dx) {
  const auto of = [](size_t value) { return static_cast<uint32_t>(value); };
  const size_t area = s.kernel * s.kernel;
  const size_t first_tap = seen_taps(s, which.y).first * s.kernel + seen_taps(s, which.x).first;
  return {.patches = output_patches(s, which),
          .images = dy,
          .weights = {.data = w,
                      .of_plane = of(area),
                      .of_tap = {of(first_tap), of(s.in_channels * area), of(s.stride * s.kernel),
                                 of(s.stride)}},
          .result = {.data = dx,
                     .planes = of(s.in_channels),
                     .sample_size = s.in_size(),
                     .plane_size = s.height * s.width,
                     .in_plane = {of(which.y * s.width + which.x), 0, of(s.stride * s.width),
                                  of(s.stride)},
                     .bias = nullptr,
                     .relu = false},
          .elements = s.samples * std::max(s.in_size(), s.out_size())};
}

/// partial[parts x out_channels x patch]: the weight's gradient by parts of the output's pixels, for
/// AddSlicesKernel. The sum goes over all pixels of all samples, which may be millions, and the
/// result may have few tiles: the blocks that these parts make keep a GPU busy.
template <class T, uint32_t kM>
struct ConvolutionWeightKernel {
  static constexpr uint32_t kWide = kNeighbours<T>;
  static constexpr uint32_t kN = 64, kDepth = kWarp * kWide, kChunks = kDepth / kTileChunk;
  static constexpr uint32_t kStride = kDepth + kPack<T>;
  static constexpr uint32_t kThreads = 128, kWarps = kThreads / kWarp, kBlocksAtOnce = 4;
  using Tile = TileSums<T, kThreads, kM, kN, kStride>;
  static constexpr size_t kBlocks = 512;    // at most so many, if parts make more than one
  static constexpr size_t kShortest = 512;  // pixels of a part

  ConvolutionShape shape;
  const T* x;
  const T* dy;
  Wide<T>* partial;
  size_t elements = shape.samples * std::max(shape.in_size(), shape.out_size());
  Patches patches = input_patches(shape);
  uint32_t planes = static_cast<uint32_t>(shape.out_channels);
  uint32_t pixels = static_cast<uint32_t>(shape.out_pixels());
  uint32_t part_pixels = static_cast<uint32_t>(
      ceil_div(std::max(kShortest, ceil_div(patches.columns, most_parts(shape))), kDepth) * kDepth);

  /// Not more for fewer samples.
  static size_t most_parts(const ConvolutionShape& s) {
    const size_t tiles = ceil_div(s.out_channels, kM) * ceil_div(s.patch(), kN);
    return std::min(std::max<size_t>(1, kBlocks / std::max<size_t>(1, tiles)),
                    std::max<size_t>(1, ceil_div(s.samples * s.out_pixels(), kShortest)));
  }
  size_t parts() const { return ceil_div(patches.columns, part_pixels); }

  Grid grid() const {
    return {.x = static_cast<uint32_t>(ceil_div(patches.rows, kN)),
            .y = static_cast<uint32_t>(ceil_div(planes, kM)),
            .z = static_cast<uint32_t>(parts())};
  }
  size_t shared_bytes() const {
    return std::max(2 * kStage * sizeof(T), kM * Tile::kOutStride * sizeof(Wide<T>)) +
           kN * sizeof(PatchRow);
  }

  template <class Block>
  RONDO_DEVICE void run(Block& block) const {
    const auto [across, down, part] = block.index();
    const uint32_t thread = block.thread(), begin = part * part_pixels;
    const uint32_t end =
        patches.columns - begin < part_pixels ? patches.columns : begin + part_pixels;
    auto* const rows = block.template shared<PatchRow>();
    T* const stages = reinterpret_cast<T*>(rows + kN);
    if (thread < kN) rows[thread] = patches.row_of(across * kN + thread, {});
    block.sync();
    const Gather gather{*this, rows, thread / kWarp, thread % kWarp * kWide, down * kM};
    const auto in_chunks = [&](const auto& f) { unrolled<kChunks>(f); };
    const auto first = gather.pixels(begin, end);
    in_chunks([&](uint32_t chunk) { gather.write(chunk, gather.read(first, chunk), stages); });
    block.sync();
    Tile sums;
    uint32_t stage = 0;
    for (uint32_t pixel = begin; pixel < end; pixel += kDepth, stage ^= 1) {
      const T* const now = stages + stage * kStage;
      T* const next = stages + (stage ^ 1) * kStage;
      const bool goes_on = end - pixel > kDepth;
      const auto of_next = gather.pixels(pixel + kDepth, end);
      in_chunks([&](uint32_t chunk) {
        typename Gather::Carried gathered{};
        if (goes_on) gathered = gather.read(of_next, chunk);
        after_reads();
        sums.add(block, now + chunk * kTileChunk, now + kM * kStride + chunk * kTileChunk);
        if (goes_on) gather.write(chunk, gathered, next);
      });
      block.sync();
    }
    auto* const out = reinterpret_cast<Wide<T>*>(stages);
    sums.store(block, out);
    block.sync();
    write(part, down * kM, across * kN, thread, out);
  }

 private:
  static constexpr uint32_t kStage = (kM + kN) * kStride;

  /// What a thread carries to shared memory: kWide pixels of every fourth row of both tiles.
  struct Gather {
    static constexpr uint32_t kLeft = kM / kWarps / kChunks, kRight = kN / kWarps / kChunks;
    struct Carried {
      Pack<T, kWide> left[kLeft], right[kRight];
    };
    struct Pixel {
      PatchColumn column;
      uint32_t in_dy;
      bool exists;
    };
    struct Pixels {
      Pixel at[kWide];
    };

    const ConvolutionWeightKernel& kernel;
    const PatchRow* rows;
    uint32_t row, place, first_plane;

    RONDO_DEVICE Pixels pixels(uint32_t first, uint32_t end) const {
      Pixels found;
      unrolled<kWide>([&](uint32_t i) {
        const uint32_t column = first + place + i;
        if (column >= end) {
          found.at[i] = {Patches::no_column(), 0, false};
          return;
        }
        const Spot spot = kernel.patches.pixel(column);
        found.at[i] = {kernel.patches.column_of(spot),
                       column + spot.plane * (kernel.planes - 1) * kernel.pixels, true};
      });
      return found;
    }
    RONDO_DEVICE Carried read(const Pixels& pixels, uint32_t chunk) const {
      Carried part;
      unrolled<kRight>([&](uint32_t r) {
        const PatchRow of_row = rows[row + (chunk * kRight + r) * kWarps];
        unrolled<kWide>([&](uint32_t i) {
          part.right[r].at[i] = kernel.patches.element(kernel.x, pixels.at[i].column, of_row);
        });
      });
      unrolled<kLeft>([&](uint32_t r) {
        const uint32_t plane = first_plane + row + (chunk * kLeft + r) * kWarps;
        unrolled<kWide>([&](uint32_t i) {
          part.left[r].at[i] = read_inside(kernel.dy, pixels.at[i].in_dy + plane * kernel.pixels,
                                           pixels.at[i].exists && plane < kernel.planes);
        });
      });
      return part;
    }
    RONDO_DEVICE void write(uint32_t chunk, const Carried& part, T* stage) const {
      unrolled<kLeft>([&](uint32_t r) {
        store(part.left[r], stage + (row + (chunk * kLeft + r) * kWarps) * kStride + place);
      });
      unrolled<kRight>([&](uint32_t r) {
        store(part.right[r], stage + (kM + row + (chunk * kRight + r) * kWarps) * kStride + place);
      });
    }
  };

  RONDO_DEVICE void write(uint32_t part, uint32_t first_plane, uint32_t first_row, uint32_t thread,
                          const Wide<T>* sums) const {
    const uint32_t row = first_row + thread % kN;
    if (row >= patches.rows) return;
    Wide<T>* const to = partial + size_t{part} * planes * patches.rows + row;
    for (uint32_t m = thread / kN; m < kM && first_plane + m < planes; m += kThreads / kN) {
      to[size_t{first_plane + m} * patches.rows] = sums[m * Tile::kOutStride + thread % kN];
    }
  }
};

}  // namespace rondo::trainer::cuda
