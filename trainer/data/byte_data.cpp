// The bytes of a corpus as samples: each position with the byte to predict, or windows with one
// target per byte. See dataset.hpp.
#include <algorithm>

#include "trainer/base/hash.hpp"
#include "trainer/data/corpus.hpp"
#include "trainer/data/datasets.hpp"
#include "trainer/data/file.hpp"

namespace rondo::trainer {
namespace {

class ByteData : public Dataset {
 public:
  ByteData(Facts facts, std::vector<uint8_t> bytes, size_t stride)
      : Dataset(std::move(facts)), bytes_(std::move(bytes)), stride_(stride) {}

  Status read(uint64_t index, const Slot& slot) const override {
    const uint8_t* begin = bytes_.data() + index * stride_;
    const uint8_t* end = begin + shape().context + 1;
    if (slot.tokens != nullptr) std::copy(begin, end - 1, slot.tokens);
    if (slot.targets != nullptr) std::copy(end - shape().targets, end, slot.targets);
    return {};
  }

 private:
  const std::vector<uint8_t> bytes_;
  const size_t stride_;  // from one sample to the next
};

}  // namespace

Result<std::unique_ptr<Dataset>> open_bytes(DataKind kind, const std::string& path,
                                            const SampleShape& shape) {
  const size_t context = shape.context;
  const bool every_position = kind == DataKind::kNextByte;
  const size_t stride = every_position ? 1 : context;
  Corpus corpus = RONDO_TRY(load_corpus(path, context + 1));
  std::vector<uint8_t> bytes = std::move(corpus.bytes);
  const auto too_large =
      std::find_if(bytes.begin(), bytes.end(), [&](uint8_t byte) { return byte >= shape.classes; });
  if (too_large != bytes.end()) {
    return data_error(path, "byte " + std::to_string(too_large - bytes.begin()) + " is " +
                                std::to_string(*too_large) + ", not below the " +
                                std::to_string(shape.classes) + " classes of the model");
  }
  Dataset::Facts facts{
      .path = path,
      .bytes = bytes.size(),
      .files = corpus.files,
      .samples = (bytes.size() - context - 1) / stride + 1,
      .hash = hash_bytes(bytes.data(), bytes.size()),
      .shape = {
          .context = context, .targets = every_position ? 1 : context, .classes = shape.classes}};
  return std::unique_ptr<Dataset>(
      std::make_unique<ByteData>(std::move(facts), std::move(bytes), stride));
}

}  // namespace rondo::trainer
