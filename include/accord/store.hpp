#pragma once
// Rendezvous: how ranks that do not yet know each other exchange small values.

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "accord/status.hpp"

namespace accord {

using Duration = std::chrono::nanoseconds;

/// A key-value store that all ranks of a job reach. Values are bytes of at most 8 MiB, keys text of at most 4 KiB.
///
/// Thread-safe: any thread may call any method, also while another one waits. A client that dies disturbs nobody.
class Store {
 public:
  virtual ~Store() = default;

  /// Sets `key`; wakes whoever waits for it. Overwrites.
  virtual Status set(std::string_view key, std::string_view value) = 0;
  /// Waits until `key` is set and gives its value; kTimeout names the key.
  virtual Result<std::string> get(std::string_view key, Duration timeout) = 0;
  /// Adds `delta` to the decimal number at `key` (absent counts as 0), at once for all ranks, and gives the sum.
  /// kInvalidArgument if the value there is no number.
  virtual Result<std::int64_t> add(std::string_view key, std::int64_t delta) = 0;
  /// Removes `key` if it is there.
  virtual Status erase(std::string_view key) = 0;
  /// Where it is, for messages: "tcp://10.0.0.1:29500", "file:///tmp/x", "memory".
  virtual std::string describe() const = 0;
};

/// A store for ranks that are threads of one process.
std::shared_ptr<Store> make_memory_store();

/// A store in directory `path` (made if absent) of a file system that all ranks see; removes nothing at the end.
Result<std::shared_ptr<Store>> make_file_store(const std::string& path);

enum class StoreRole : std::uint8_t { kHost, kClient };

/// A store over TCP at `host`:`port`. The kHost serves it from a thread until its Store is destroyed, and is a client too;
/// port 0 takes a free one (see describe()). A client retries the connection until `timeout`. Errors: kNotFound at once if
/// `host` has no address, kTimeout if nobody answers, kIo if `port` cannot be served.
Result<std::shared_ptr<Store>> make_tcp_store(StoreRole role, const std::string& host, int port, Duration timeout);

/// `store` seen through a prefix: key "k" is `prefix`/k there.
std::shared_ptr<Store> make_prefix_store(std::shared_ptr<Store> store, std::string prefix);

}  // namespace accord
