#pragma once
// The keys and values of a language model's sequences in device memory, and the tables of a run that locate them.

#include <map>
#include <span>
#include <vector>

#include "device/memory.hpp"
#include "engine/gpu/kernels/cache_kernels.hpp"
#include "engine/program/batch.hpp"

namespace accord::engine {

/// One allocation for all layers. Blocks have the same numbers as in KeyValueCache.
class DeviceCache {
 public:
  DeviceCache() = default;
  /// Errors as for KeyValueCache::create().
  static Result<DeviceCache> create(std::span<const CachedLayer> layers, const KeyValueCacheOptions& options,
                                    device::Runtime& runtime, Device device);

  const KeyValueCacheOptions& options() const { return options_; }
  std::size_t bytes() const { return memory_.size(); }
  /// REQUIRES: a layer of this number.
  const DeviceCacheLayer& layer(std::int64_t number) const { return layers_.at(number); }
  /// Copies a block in all layers. Runs in `stream`.
  Status copy_block(std::int32_t from, std::int32_t to, device::Runtime& runtime, Device device, Stream stream) const;

 private:
  KeyValueCacheOptions options_;
  device::Memory memory_;
  std::map<std::int64_t, DeviceCacheLayer> layers_;
};

/// The most rows of a sequence that any kernel for short sequences takes.
inline constexpr std::int64_t kMostFewRows = 64;

/// How many rows the sequences of a batch have. Decides which kernels are launched, so each kind has graphs of its own.
enum class BatchKind : std::uint8_t {
  kSingleRows,  ///< one each, as in decoding
  kManyRows,    ///< more than kMostFewRows each, as in prompts
  kMixed,
};
inline constexpr std::size_t kBatchKinds = 3;

/// The places of a run's rows and their tables, in device memory that stays the same as long as it is large enough.
class DeviceBatch {
 public:
  /// Copies `batch` to the device in `stream`. The tables do not change until the next call, which must come after
  /// the copy has completed. Returns true if the memory is not the same as before.
  Result<bool> set(std::span<const BatchRows> batch, device::Runtime& runtime, Device device, Stream stream);
  BatchTables tables() const { return tables_; }
  BatchKind kind() const { return kind_; }

 private:
  device::Memory memory_;
  device::Memory staged_;  // the same in pinned memory of the host
  // Small, so they are kept: a release waits for everything that runs on the device.
  std::vector<device::Memory> outgrown_;
  std::size_t rows_ = 0;    // capacity
  std::size_t blocks_ = 0;  // capacity, over all tables
  bool moved_ = false;      // and not yet reported to the caller
  BatchTables tables_;
  BatchKind kind_ = BatchKind::kMixed;
};

}  // namespace accord::engine
