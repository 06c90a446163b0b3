#pragma once
// Rendezvous: how ranks that do not know each other yet exchange small values.

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "accord/status.hpp"

namespace accord {

using Duration = std::chrono::nanoseconds;

/// A key-value store that all ranks of a job can reach. Values are at most 8 MiB of bytes, keys at most 4 KiB of
/// text.
///
/// Thread-safe: any thread may call any method, even while another one waits. A client that dies does not affect the
/// others.
class Store {
 public:
  virtual ~Store() = default;

  /// Sets `key`, overwriting any earlier value, and wakes every rank that waits for the key.
  virtual Status set(std::string_view key, std::string_view value) = 0;
  /// Waits until `key` is set and returns its value; kTimeout names the key.
  virtual Result<std::string> get(std::string_view key, Duration timeout) = 0;
  /// Atomically adds `delta` to the decimal number at `key` (an absent key counts as 0) and returns the sum. Fails
  /// with kInvalidArgument if the existing value is not a number.
  virtual Result<std::int64_t> add(std::string_view key, std::int64_t delta) = 0;
  /// Removes `key` if it exists.
  virtual Status erase(std::string_view key) = 0;
  /// The store's address, for messages: "tcp://10.0.0.1:29500", "file:///tmp/x", "memory".
  virtual std::string describe() const = 0;
};

/// Creates a store for ranks that are threads of one process.
std::shared_ptr<Store> make_memory_store();

/// Creates a store in the directory `path` (created if absent) of a file system that all ranks share. Nothing is
/// removed when the store is destroyed.
Result<std::shared_ptr<Store>> make_file_store(const std::string& path);

enum class StoreRole : std::uint8_t { kHost, kClient };

/// Creates a store over TCP at `host`:`port`. The kHost serves it from a thread until its Store is destroyed, and
/// also acts as a client; port 0 selects a free port (see describe()). A client retries the connection until
/// `timeout`. Fails with kNotFound at once if `host` has no address, kTimeout if nothing answers, or kIo if the host
/// cannot serve `port`. `answer_timeout`: how long set(), add() and erase() wait for the host's answer; `timeout` if
/// left out, and at least 5 s.
Result<std::shared_ptr<Store>> make_tcp_store(StoreRole role, const std::string& host, int port, Duration timeout,
                                              std::optional<Duration> answer_timeout = {});

/// Creates a view of `store` in which key "k" is key `prefix`/k of `store`.
std::shared_ptr<Store> make_prefix_store(std::shared_ptr<Store> store, std::string prefix);

}  // namespace accord
