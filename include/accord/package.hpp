#pragma once
// Engine packages on disk: what one holds, and whether it is whole. engine.hpp loads and runs them.

#include <cstdint>
#include <string>
#include <vector>

#include "accord/status.hpp"

namespace accord {

/// One JSON object that tells what the package at `path` holds; docs/cli.md describes it. Reads manifest, graph and the headers
/// of the weight files, no weights. kNotFound if there is no package, kCorrupt (names the file and what is wrong),
/// kUnsupported (another format version, an unknown op).
[[nodiscard]] Result<std::string> inspect_package(const std::string& path);

/// One damaged place of a package.
struct Damage {
  std::string file;  ///< inside the package
  std::string what;  ///< without the file's name
};

/// Reads every byte of every file of the package and lists all damage; empty if it is whole. An error Status if it
/// cannot be read at all. `progress`, if set, is called with (bytes done, bytes in all).
[[nodiscard]] Result<std::vector<Damage>> verify_package(const std::string& path,
                                                         void (*progress)(std::uint64_t, std::uint64_t) = nullptr);

}  // namespace accord
