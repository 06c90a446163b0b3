#pragma once
// NCCL's library, loaded when it is first needed.

#include <memory>
#include <string>
#include <string_view>

#include "accord/status.hpp"
#include "comm/nccl/abi.hpp"

namespace accord::comm::nccl {

/// A loaded library. Never unloaded, because it has threads of its own.
struct Library {
  Functions call = {};
  int version = 0;   ///< for example 22907
  std::string path;  ///< of the file

  /// Returns an error for the `code` of `function`, with the library's last error text. REQUIRES: the code is neither
  /// kSuccess nor kInProgress.
  Status failure(std::string_view function, int code) const;
};

/// For example "2.29.7" for 22907.
std::string version_text(int version);

/// Loads the library at `path`, a file or a name for the loader. kNotFound if it cannot be loaded; kUnsupported if it
/// is not NCCL, or older than 2.18.
Result<std::unique_ptr<const Library>> load(const std::string& path);

/// Returns this process's library. If ACCORD_NCCL is set, only that one; else the one that is already loaded (as by
/// torch), the one of the PyPI package nvidia-nccl as suggested or beside accord, or the system's. The error says
/// what was tried; the next call tries again.
Result<const Library*> library();

/// Suggests the library of the program's language packages, to be used before the system's: torch later asks for its
/// own by the same name, and gets the one that is loaded by then, which may be too old for it. Called before the
/// first library().
void suggest(std::string path);

/// Replaces this process's library, for tests; null restores it.
void replace_library(const Library* library);

}  // namespace accord::comm::nccl
