// read_profile() of profile_file.hpp: the file. Apart from the parser, which the page runs where there are no files.
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "comm/tuner/profile_file.hpp"

namespace rondo::tuner {

Result<LinkProfile> read_profile(const std::string& path) {
  // Nor does opening it wait: a FIFO's would.
  std::error_code error;
  const auto kind = std::filesystem::status(path, error).type();
  if (kind != std::filesystem::file_type::regular && std::filesystem::exists(path, error)) {
    return Status(Code::kInvalidArgument, "the link profile '" + path + "' is no regular file");
  }
  std::ifstream file(path, std::ios::binary);
  std::string text(kMaxProfileBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  const auto size = static_cast<size_t>(file.gcount());
  if (!file.is_open() || file.bad() || (size == 0 && !file.eof())) {
    return Status(Code::kSystem,
                  "cannot read the link profile '" + path + "': " + std::strerror(errno));
  }
  if (size > kMaxProfileBytes) {
    return Status(Code::kDataError, "link profile '" + path + "' has more than " +
                                        std::to_string(kMaxProfileBytes) + " bytes");
  }
  text.resize(size);
  return parse_profile(text, path);
}

}  // namespace rondo::tuner
