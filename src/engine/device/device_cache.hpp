#pragma once
// The keys and values of a language model's sequences in memory of a device, and the tables of a run that lead to them.

#include <map>
#include <span>
#include <vector>

#include "engine/device/cache_kernels.hpp"
#include "engine/device/device_memory.hpp"
#include "engine/runtime/key_value_cache.hpp"

namespace accord::engine {

/// One memory for all layers; blocks as those of KeyValueCache, of the same numbers.
class DeviceCache {
 public:
  DeviceCache() = default;
  /// Errors as of KeyValueCache.
  static Result<DeviceCache> create(std::span<const CachedLayer> layers, const KeyValueCacheOptions& options,
                                    device::Runtime& runtime, Device device);

  const KeyValueCacheOptions& options() const { return options_; }
  std::size_t bytes() const { return memory_.size(); }
  /// REQUIRES: a layer of this number.
  const DeviceCacheLayer& layer(std::int64_t number) const { return layers_.at(number); }
  /// Copies a block in all layers, in `stream`.
  Status copy_block(std::int32_t from, std::int32_t to, device::Runtime& runtime, Device device, Stream stream) const;

 private:
  KeyValueCacheOptions options_;
  DeviceMemory memory_;
  std::map<std::int64_t, DeviceCacheLayer> layers_;
};

/// Where the rows of runs stand, on a device: the same memory as long as it is large enough.
class DeviceBatch {
 public:
  /// Copies what `batch` says to the device, in `stream`; it stays as it is until the next call, which comes after that. True if the memory is
  /// another one than before.
  Result<bool> set(std::span<const BatchRows> batch, device::Runtime& runtime, Device device, Stream stream);
  BatchTables tables() const { return tables_; }

 private:
  DeviceMemory memory_;
  std::vector<DeviceMemory> outgrown_;  // small, and giving memory back waits for all that runs on the device
  std::vector<std::byte> staged_;
  std::size_t rows_ = 0;    // that there is room for
  std::size_t blocks_ = 0;  // the same, in all tables together
  bool moved_ = false;      // and nobody has been told
  BatchTables tables_;
};

}  // namespace accord::engine
