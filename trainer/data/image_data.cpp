// Pictures and their labels in a pair of IDX files, MNIST's format, held in memory. The path is the
// file of pictures, whose labels are looked for beside it, or a folder with one such pair.
//
//   file    bytes                  what
//   images  4, 4, 4, 4             magic 0x803, pictures, rows, columns
//           rows * columns each    uint8 per pixel, row by row
//   labels  4, 4                   magic 0x801, labels
//           1 each                 uint8
//
// All big-endian. Nothing may follow. Compressed files are refused, not unpacked.
#include <algorithm>
#include <filesystem>

#include "trainer/base/hash.hpp"
#include "trainer/data/datasets.hpp"
#include "trainer/data/file.hpp"

namespace rondo::trainer {
namespace {

namespace fs = std::filesystem;

/// One IDX file of bytes.
struct Idx {
  std::string path;
  std::vector<uint8_t> file;
  std::vector<size_t> extents;  // as the header says: how many, then the size of each
  size_t header_bytes = 0;

  const uint8_t* data() const { return file.data() + header_bytes; }
};

class ImageData : public Dataset {
 public:
  ImageData(Facts facts, Idx images, Idx labels)
      : Dataset(std::move(facts)), images_(std::move(images)), labels_(std::move(labels)) {}

  Status read(uint64_t index, const Slot& slot) const override {
    const uint8_t* image = images_.data() + index * shape().pixels();
    if (slot.images != nullptr) {
      std::transform(image, image + shape().pixels(), slot.images,
                     [](uint8_t pixel) { return static_cast<float>(pixel) / 255.0f; });
    }
    if (slot.targets != nullptr) *slot.targets = labels_.data()[index];
    return {};
  }

 private:
  const Idx images_, labels_;
};

size_t big_endian(const uint8_t* p) {
  return size_t{p[0]} << 24 | size_t{p[1]} << 16 | size_t{p[2]} << 8 | size_t{p[3]};
}

std::string times(const std::vector<size_t>& extents) {
  std::string text;
  for (const size_t extent : extents) text += (text.empty() ? "" : " x ") + std::to_string(extent);
  return text;
}

Status compressed(const std::string& path) {
  return data_error(path, "is compressed: gunzip it first");
}

/// Reads an IDX file of bytes with that many dimensions.
Result<Idx> load_idx(const std::string& path, size_t dimensions) {
  Idx idx;
  idx.path = path;
  RONDO_TRY(append_file(path, idx.file));
  const std::vector<uint8_t>& file = idx.file;
  if (file.size() >= 2 && file[0] == 0x1f && file[1] == 0x8b) return compressed(path);
  idx.header_bytes = 4 * (1 + dimensions);
  if (file.size() < idx.header_bytes) {
    return data_error(path, "has " + std::to_string(file.size()) +
                                " bytes, but an IDX file of this kind begins with a header of " +
                                std::to_string(idx.header_bytes));
  }
  const size_t magic = big_endian(file.data()), wanted = 0x800 + dimensions;
  if (magic != wanted) {
    return data_error(path, "begins with magic " + std::to_string(magic) + ", not " +
                                std::to_string(wanted) + ": no IDX file of bytes with " +
                                std::to_string(dimensions) + " dimensions");
  }
  size_t bytes = 1;
  bool overflows = false;
  for (size_t d = 1; d <= dimensions; ++d) {
    idx.extents.push_back(big_endian(file.data() + 4 * d));
    overflows |= __builtin_mul_overflow(bytes, idx.extents.back(), &bytes);
  }
  const size_t held = file.size() - idx.header_bytes;
  if (overflows || bytes != held) {
    return data_error(path, "should hold " + times(idx.extents) + " bytes, but has " +
                                std::to_string(held) + " after its header: truncated?");
  }
  return idx;
}

/// Whether a name is one of pictures: "...images...idx3-ubyte", followed by `suffix`.
bool names_images(const std::string& name, const std::string& suffix) {
  const size_t images = name.find("images");
  return images != std::string::npos && name.find("idx3-ubyte", images) != std::string::npos &&
         name.ends_with("idx3-ubyte" + suffix);
}

/// The one file of pictures in a folder.
Result<std::string> find_images(const std::string& folder) {
  std::vector<std::string> found, packed;
  std::error_code error;
  fs::directory_iterator entries(folder, error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    const std::string name = entries->path().filename().native();
    if (names_images(name, "")) found.push_back(entries->path().native());
    if (names_images(name, ".gz")) packed.push_back(entries->path().native());
  }
  if (error) return data_error(folder, "cannot be listed: " + error.message());
  if (found.empty() && !packed.empty()) {
    return compressed(*std::min_element(packed.begin(), packed.end()));
  }
  if (found.empty()) return data_error(folder, "holds no pictures (*images*idx3-ubyte)");
  std::sort(found.begin(), found.end());
  if (found.size() > 1) {
    return data_error(folder, "holds " + std::to_string(found.size()) +
                                  " files of pictures: name the one you mean, for example '" +
                                  found.front() + "'");
  }
  return found.front();
}

/// The labels of that file of pictures: "train-images-idx3-ubyte" has "train-labels-idx1-ubyte" or
/// "train-labels.idx1-ubyte" beside it.
Result<std::string> find_labels(const std::string& images) {
  const fs::path path(images);
  std::string name = path.filename().native();
  if (!names_images(name, "")) {
    return data_error(images,
                      "is not called *images*idx3-ubyte, so that its labels "
                      "(*labels*idx1-ubyte) cannot be found");
  }
  const size_t kind = name.rfind("idx3");
  name.replace(kind, 4, "idx1");
  name.replace(name.find("images"), 6, "labels");  // as long: `kind` stays right
  std::string other = name;
  if (kind > 0) other[kind - 1] = name[kind - 1] == '.' ? '-' : '.';
  for (const std::string& candidate : {name, other}) {
    const fs::path labels = path.parent_path() / candidate;
    std::error_code ignored;
    if (fs::exists(labels, ignored)) return labels.native();
    if (fs::exists(labels.native() + ".gz", ignored)) return compressed(labels.native() + ".gz");
  }
  return data_error(images, "has no labels beside it: neither '" + name + "' nor '" + other + "'");
}

/// Whether the two belong together and to the model.
Status check_pair(const Idx& images, const Idx& labels, const SampleShape& wanted) {
  const size_t count = images.extents[0], rows = images.extents[1], columns = images.extents[2];
  if (count == 0 || rows == 0 || columns == 0) {
    return data_error(images.path, "holds " + times(images.extents) + " pixels: no pictures");
  }
  if (labels.extents[0] != count) {
    return data_error(labels.path, "holds " + std::to_string(labels.extents[0]) + " labels, but '" +
                                       images.path + "' " + std::to_string(count) + " pictures");
  }
  const auto differs = [](size_t want, size_t have) { return want != 0 && want != have; };
  if (differs(wanted.channels, 1) || differs(wanted.height, rows) ||
      differs(wanted.width, columns)) {
    return data_error(images.path, "holds pictures of " + times({1, rows, columns}) +
                                       " (channels x rows x columns), but the model needs " +
                                       times({wanted.channels, wanted.height, wanted.width}) +
                                       ", where 0 is any");
  }
  for (size_t i = 0; i < count; ++i) {
    if (labels.data()[i] < wanted.classes) continue;
    return data_error(labels.path, "label " + std::to_string(i) + " is " +
                                       std::to_string(labels.data()[i]) + ", not below the " +
                                       std::to_string(wanted.classes) + " classes of the model");
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Dataset>> open_images(const std::string& path, const SampleShape& shape) {
  std::error_code ignored;
  std::string file = RONDO_TRY(fs::is_directory(path, ignored) ? find_images(path) : path);
  Idx images = RONDO_TRY(load_idx(file, 3));
  const std::string label_file = RONDO_TRY(find_labels(file));
  Idx labels = RONDO_TRY(load_idx(label_file, 1));
  RONDO_TRY(check_pair(images, labels, shape));

  const std::vector<uint8_t>&pictures = images.file, &names = labels.file;
  Dataset::Facts facts{
      .path = path,
      .bytes = pictures.size() + names.size(),
      .files = 2,
      .samples = images.extents[0],
      .hash = hash_bytes(names.data(), names.size(), hash_bytes(pictures.data(), pictures.size())),
      .shape = {.targets = 1,
                .channels = 1,
                .height = images.extents[1],
                .width = images.extents[2],
                .classes = shape.classes}};
  return std::unique_ptr<Dataset>(
      std::make_unique<ImageData>(std::move(facts), std::move(images), std::move(labels)));
}

}  // namespace rondo::trainer
