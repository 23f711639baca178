// Conversions between fp32 and 16-bit floats: every instruction set gives the bits of half.hpp.
#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "kernels/half.hpp"
#include "kernels/host/targets.hpp"
#include "tests/harness/catch.hpp"

namespace rondo::kernels::convert_test {
namespace {

struct Format {
  DataType type;
  uint16_t (*narrow)(float);
  float (*widen)(uint16_t);
};
constexpr Format kFormats[] = {{DataType::kFloat16, half_from_float, float_from_half},
                               {DataType::kBFloat16, bfloat16_from_float, float_from_bfloat16}};

/// Every value of the format and its neighbours in fp32, ties, NaNs with any bits, and others.
std::vector<float> values_around(const Format& format) {
  std::vector<float> values;
  for (uint32_t pattern = 0; pattern < 0x10000; ++pattern) {
    const auto bits = std::bit_cast<uint32_t>(format.widen(static_cast<uint16_t>(pattern)));
    for (const uint32_t offset :
         {0u, 1u, ~0u, 0xfffu, 0x1000u, 0x1001u, 0x7fffu, 0x8000u, 0x8001u}) {
      values.push_back(std::bit_cast<float>(bits + offset));
    }
  }
  std::mt19937 random(7);
  for (int i = 0; i < 100'000; ++i)
    values.push_back(std::bit_cast<float>(static_cast<uint32_t>(random())));
  return values;
}

bool is_nan(const Format& format, uint16_t pattern) { return std::isnan(format.widen(pattern)); }

}  // namespace

TEST_CASE("Conversions of every instruction set equal one value's, rounded once") {
  for (const Format& format : kFormats) {
    const std::vector<float> values = values_around(format);
    for (const char* set : instruction_sets()) {
      const Conversion conversion = conversion_for(set, format.type);
      for (const float factor : {1.0F, 0.3F}) {
        INFO(set << ", " << name(format.type) << ", times " << factor);
        std::vector<uint16_t> narrow(values.size());
        conversion.narrow(values.data(), narrow.data(), values.size(), factor);
        size_t wrong = 0;
        for (size_t i = 0; i < values.size(); ++i) {
          const uint16_t expected = format.narrow(values[i] * factor);
          const bool both = is_nan(format, expected) && is_nan(format, narrow[i]);
          if (narrow[i] != expected && !both) ++wrong;
        }
        CHECK(wrong == 0);
      }
      std::vector<uint16_t> patterns(0x10000);
      for (size_t i = 0; i < patterns.size(); ++i) patterns[i] = static_cast<uint16_t>(i);
      std::vector<float> wide(patterns.size());
      conversion.widen(patterns.data(), wide.data(), patterns.size());
      size_t wrong = 0;
      for (size_t i = 0; i < patterns.size(); ++i) {
        const float expected = format.widen(patterns[i]);
        const bool both = std::isnan(expected) && std::isnan(wide[i]);
        if (std::bit_cast<uint32_t>(wide[i]) != std::bit_cast<uint32_t>(expected) && !both) ++wrong;
      }
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("Conversions write as many values as asked for, at any element") {
  for (const char* set : instruction_sets()) {
    const Conversion conversion = conversion_for(set, DataType::kBFloat16);
    for (size_t count = 0; count < 70; ++count) {
      std::vector<float> from(count + 1, 1.5F), back(count + 2, -1);
      std::vector<uint16_t> to(count + 2, 7);
      conversion.narrow(from.data() + 1, to.data() + 1, count, 2);
      conversion.widen(to.data() + 1, back.data() + 1, count);
      INFO(set << ", " << count);
      CHECK(std::vector<float>(back.begin() + 1, back.end() - 1) == std::vector<float>(count, 3));
      CHECK((to.front() == 7 && to.back() == 7 && back.front() == -1 && back.back() == -1));
    }
  }
}

}  // namespace rondo::kernels::convert_test
