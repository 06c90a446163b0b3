#pragma once
// NCCL's library, loaded when it is first needed.

#include <memory>
#include <string>
#include <string_view>

#include "accord/status.hpp"
#include "comm/nccl/abi.hpp"

namespace accord::comm::nccl {

/// A loaded library; never unloaded, for it has threads of its own.
struct Library {
  Functions call = {};
  int version = 0;   ///< 22907
  std::string path;  ///< of the file

  /// That `function` gave `code`, and what the library said last. REQUIRES: it is neither kSuccess nor kInProgress.
  Status failure(std::string_view function, int code) const;
};

/// "2.29.7" of 22907.
std::string version_text(int version);

/// Loads the one at `path`, a file or a name for the loader. kNotFound if it cannot be loaded; kUnsupported if it is no NCCL, or older than 2.18.
Result<std::unique_ptr<const Library>> load(const std::string& path);

/// This process's: ACCORD_NCCL where that is set, and no other then; else the one that is loaded already (as by torch), the one of PyPI's package
/// nvidia-nccl as suggested or beside accord, the system's. The error says what was tried; the next call tries again.
Result<const Library*> library();

/// Where the packages of the program's language have one, to be taken before the system's: torch asks for its own by the same name later, and gets what is loaded
/// then, which may be too old for it. Before the first call of library().
void suggest(std::string path);

/// In the place of this process's, for tests; null gives that back.
void replace_library(const Library* library);

}  // namespace accord::comm::nccl
