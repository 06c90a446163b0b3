#pragma once
// Engine packages on disk: their contents and their integrity. engine.hpp loads and runs them.

#include <cstdint>
#include <string>
#include <vector>

#include "accord/status.hpp"

namespace accord {

/// Returns a JSON object that describes the package at `path`; docs/cli.md describes the format. Reads the manifest,
/// the graph and the headers of the weight files, but no weights. Fails with kNotFound if there is no package,
/// kCorrupt (names the file and what is wrong), or kUnsupported (another format version, an unknown op).
[[nodiscard]] Result<std::string> inspect_package(const std::string& path);

/// One damaged place of a package.
struct Damage {
  std::string file;  ///< path inside the package
  std::string what;  ///< without the file's name
};

/// Reads every byte of every file of the package and lists all damage; the list is empty if the package is intact.
/// Fails if the package cannot be read at all. `progress`, if set, is called with (bytes done, total bytes).
[[nodiscard]] Result<std::vector<Damage>> verify_package(const std::string& path,
                                                         void (*progress)(std::uint64_t, std::uint64_t) = nullptr);

}  // namespace accord
