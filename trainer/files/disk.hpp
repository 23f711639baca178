// The few operations with which files are saved so that a crash, of the program or of the machine,
// leaves either the old or the new. What has been written or renamed is on the disk when they
// return. Knows no formats.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "rondo/status.hpp"

namespace rondo::trainer {

struct DiskPiece {
  const void* data;
  size_t bytes;
};

/// Creates, or empties, the file and writes the pieces one after the other. Where it fails, a part
/// of the file may be left. The folder's entry is not yet safe: sync_folder().
Status write_file(const std::string& path, std::span<const DiskPiece> pieces);

/// Writes a temporary file, temporary_name(), beside the file, file_behind(), and renames it. Where
/// it fails, what was at `path` still is. kSystem where that is no regular file: a folder, a device,
/// a pipe.
Status replace_file(const std::string& path, std::span<const DiskPiece> pieces);
/// What replace_file() would say before it writes. Changes nothing.
Status try_replace(const std::string& path);

/// Where the file lies that `path` names: symlinks are followed, also to what is not there yet.
std::string file_behind(const std::string& path);

/// Renames `from` to `to`, in the same folder. A folder that is at `to` already takes `from`'s
/// place, in one step where the file system can (renameat2 with RENAME_EXCHANGE); elsewhere (NFS)
/// there is a moment in which neither is at `to`.
Status exchange_folder(const std::string& from, const std::string& to);

/// Creates a folder and those above it that are missing.
Status create_folder(const std::string& path);
Status sync_folder(const std::string& path);
/// A file, or a folder with everything in it. Nothing there is no error.
Status remove_with_content(const std::string& path);

Result<std::string> read_text_file(const std::string& path);

/// FOLDER/.NAME.tmp.PID for FOLDER/NAME.
std::string temporary_name(const std::string& path);
/// Whether a name (no path) is one of those, of any process.
bool is_temporary_name(const std::string& name);

/// For tests of crashes: called before each change to the disk with what it is ("create", "write",
/// "sync", "rename", "exchange", "remove") and the path. Null: nothing is called. Not thread-safe.
using DiskWatcher = void (*)(const char* operation, const std::string& path);
void watch_disk(DiskWatcher watcher);

}  // namespace rondo::trainer
