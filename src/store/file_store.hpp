#pragma once
// The store in a directory, with a lock timeout of the caller's choice.

#include <memory>
#include <string>

#include "accord/store.hpp"

namespace accord::store {

/// As accord::make_file_store(). A writer that another process keeps from the lock for `lock_timeout` fails with
/// kTimeout and names that process.
Result<std::shared_ptr<Store>> make_file_store(const std::string& path, Duration lock_timeout);

}  // namespace accord::store
