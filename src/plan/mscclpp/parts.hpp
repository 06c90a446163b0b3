#pragma once
// The objects that the ops of an execution plan refer to: the memories and channels of a GPU, and the thread block's
// share of them.

#include <array>
#include <map>
#include <string>
#include <vector>

#include "base/json_node.hpp"
#include "plan/mscclpp/read.hpp"

namespace accord::plan::mscclpp {

/// A peer's memory that a GPU may reach, over channels of these types (any if the list is empty).
struct RemoteBuffer {
  Rank rank = 0;
  Memory memory = Memory::kInput;
  std::vector<std::string> types;
};

/// A GPU's memories and channels.
struct GpuParts {
  std::array<int, 3> chunks = {};                        // by Memory
  std::map<std::string, std::vector<Channel>> channels;  // by type
  std::vector<SwitchChannel> switches;
  std::vector<RemoteBuffer> remote_buffers;
};

/// The lists that the ops of a thread block index, by type of channel.
struct BlockParts {
  std::map<std::string, std::vector<Channel>> channels;
  std::vector<SwitchChannel> switches;
  std::map<std::string, std::vector<RemoteBuffer>> remote_buffers;
};

/// Returns kUnsupported with the node's place.
Status unsupported(const JsonNode& node, std::string_view problem);

Result<Memory> read_memory(const JsonNode& node);
/// "memory" or "port". A switch channel connects no pair of ranks and is not one of them.
Result<std::string> read_channel_type(const JsonNode& node);

/// Reads the parts of `rank`, which is gpus[rank], of `size` ranks.
Result<GpuParts> read_gpu_parts(const JsonNode& node, Rank rank, int size);
Result<BlockParts> read_block_parts(const JsonNode& block, const GpuParts& gpu);

}  // namespace accord::plan::mscclpp
