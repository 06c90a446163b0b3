#pragma once
// Rows that travel in collectives of the communicator, for ranks that do not all reach each other's memory.

#include <memory>
#include <optional>
#include <vector>

#include "expert/device/kernel_launcher.hpp"
#include "expert/device/packed_rows.hpp"
#include "expert/device/row_exchange.hpp"

namespace accord::expert {

/// A call packs rows, sends them by all_to_all_v, and unpacks them. The collective needs the numbers of rows on the
/// host: the first call after a prepare waits until the map is built. Calls cannot be captured into graphs.
class CollectiveExchange final : public RowExchange {
 public:
  /// Collective: connects the ranks by a first all_to_all_v. Fails on all ranks if the communicator has no such call
  /// on their devices.
  static Result<std::unique_ptr<RowExchange>> create(KernelLauncher& launcher);
  ~CollectiveExchange() override;
  CollectiveExchange(const CollectiveExchange&) = delete;
  CollectiveExchange& operator=(const CollectiveExchange&) = delete;

  RowPath path() const override { return RowPath::kCollectives; }
  Status prepare(const DeviceHandle& handle, const RoutingInput& input, Stream stream) override;
  Status send_rows(const DeviceHandle& handle, const Move& move, const ConstRows& tokens, const Rows& slots) override;
  Status return_rows(const DeviceHandle& handle, const Move& move, const ConstRows& slots, RowSums sums,
                     std::byte* weights) override;
  /// No rank writes into the memory of another.
  void wait_for_peers() override {}

 private:
  CollectiveExchange(KernelLauncher& launcher, CallMemory own, CallMemory routing)
      : launcher_(launcher), own_(std::move(own)), routing_(std::move(routing)) {}
  /// What this rank needs before the ranks connect.
  static Result<std::unique_ptr<CollectiveExchange>> allocate(KernelLauncher& launcher);
  GatheredRouting routing_of(const Map& map) const;
  /// kUnsupported if the stream is being captured.
  Status check_stream(Operation operation, Stream stream) const;
  /// The bytes of records between this rank and each other rank.
  struct Bytes {
    std::vector<std::size_t> by_rank;
    std::size_t all = 0;
  };
  /// Bytes of the rows of this rank's tokens, and of the rows of its slots.
  struct Traffic {
    Bytes tokens, slots;
  };
  /// Waits until the numbers of rows are on the host, and makes room for their records.
  Result<Traffic> begin(const DeviceHandle& handle, const Move& move);
  Status await_map(const DeviceHandle& handle, Operation operation) const;
  /// Grows `memory` to `bytes`.
  Status reserve(std::optional<CallMemory>& memory, std::size_t bytes) const;
  Status exchange(const CallMemory& from, const Bytes& sent, const CallMemory& to, const Bytes& received,
                  Stream stream) const;
  /// Makes the end of the stream's contents the last use of all memory.
  Status note_end(const DeviceHandle& handle, Stream stream);

  KernelLauncher& launcher_;
  CallMemory own_;                            ///< this rank's words
  CallMemory routing_;                        ///< of all ranks
  std::optional<CallMemory> tokens_, slots_;  ///< records of this rank's tokens, and of its slots
  std::shared_ptr<const device::Event> end_;  ///< of the last call
  Stream stream_ = {};                        ///< in which the ranks connect
};

}  // namespace accord::expert
