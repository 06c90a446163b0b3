// The nth channel from A to B pairs with the nth from B to A, so channels are numbered by peer as they are flattened.

#include "plan/mscclpp/parts.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace accord::plan::mscclpp {
namespace {

constexpr int kMaxChunksPerGpu = 1 << 16;  // in one memory of a rank

Result<Rank> read_peer(const JsonNode& node, Rank rank, int size) {
  ACCORD_ASSIGN_OR_RETURN(const Rank peer, node.integer(0, size - 1));
  if (peer == rank) return node.error(fmt::format("rank {} is its own peer", rank));
  return peer;
}

constexpr std::string_view kSwitch = "switch";

Result<bool> is_switch(const JsonNode& type_node) {
  ACCORD_ASSIGN_OR_RETURN(const std::string type, type_node.text());
  return type == kSwitch;
}

Result<std::vector<Rank>> read_ranks(const JsonNode& group, Rank rank, int size) {
  ACCORD_ASSIGN_OR_RETURN(const JsonNode ranks_node, group.required("ranks"));
  ACCORD_ASSIGN_OR_RETURN(const std::vector<JsonNode> items, ranks_node.items());
  std::vector<Rank> ranks;
  for (const JsonNode& item : items) {
    ACCORD_ASSIGN_OR_RETURN(const Rank one, item.integer(0, size - 1));
    if (std::ranges::find(ranks, one) != ranks.end()) return item.error(fmt::format("rank {} appears twice", one));
    ranks.push_back(one);
  }
  if (std::ranges::find(ranks, rank) == ranks.end()) return ranks_node.error(fmt::format("rank {} is missing", rank));
  std::ranges::sort(ranks);
  return ranks;
}

// One channel per group.
Status read_switch_channels(const JsonNode& channel, Rank rank, int size, GpuParts& parts) {
  ACCORD_ASSIGN_OR_RETURN(const JsonNode type_node, channel.required("buffer_type"));
  ACCORD_ASSIGN_OR_RETURN(const Memory memory, read_memory(type_node));
  ACCORD_ASSIGN_OR_RETURN(const JsonNode groups_node, channel.required("rank_groups"));
  ACCORD_ASSIGN_OR_RETURN(const std::vector<JsonNode> groups, groups_node.items());
  for (const JsonNode& group : groups) {
    ACCORD_ASSIGN_OR_RETURN(std::vector<Rank> ranks, read_ranks(group, rank, size));
    parts.switches.push_back({memory, std::move(ranks)});
  }
  return {};
}

Status read_channels(const JsonNode& node, Rank rank, int size, GpuParts& parts) {
  ACCORD_ASSIGN_OR_RETURN(const std::vector<JsonNode> channels, node.items_at("channels"));
  for (const JsonNode& channel : channels) {
    ACCORD_ASSIGN_OR_RETURN(const JsonNode type_node, channel.required("channel_type"));
    ACCORD_ASSIGN_OR_RETURN(const bool of_switch, is_switch(type_node));
    if (of_switch) {
      ACCORD_RETURN_IF_ERROR(read_switch_channels(channel, rank, size, parts));
      continue;
    }
    ACCORD_ASSIGN_OR_RETURN(const std::string type, read_channel_type(type_node));
    ACCORD_ASSIGN_OR_RETURN(const JsonNode peers_node, channel.required("connected_to"));
    ACCORD_ASSIGN_OR_RETURN(const std::vector<JsonNode> peers, peers_node.items());
    std::vector<Channel>& list = parts.channels[type];
    for (const JsonNode& item : peers) {
      ACCORD_ASSIGN_OR_RETURN(const Rank peer, read_peer(item, rank, size));
      const auto nth = std::ranges::count_if(list, [&](const Channel& other) { return other.peer == peer; });
      list.push_back({type, peer, static_cast<int>(nth)});
    }
  }
  return {};
}

Status read_remote_buffers(const JsonNode& node, Rank rank, int size, GpuParts& parts) {
  ACCORD_ASSIGN_OR_RETURN(const std::vector<JsonNode> buffers, node.items_at("remote_buffers"));
  for (const JsonNode& item : buffers) {
    RemoteBuffer buffer;
    ACCORD_ASSIGN_OR_RETURN(const JsonNode peer, item.required("rank"));
    ACCORD_ASSIGN_OR_RETURN(buffer.rank, read_peer(peer, rank, size));
    ACCORD_ASSIGN_OR_RETURN(const JsonNode type, item.required("type"));
    ACCORD_ASSIGN_OR_RETURN(buffer.memory, read_memory(type));
    ACCORD_ASSIGN_OR_RETURN(const std::vector<JsonNode> types, item.items_at("access_channel_types"));
    for (const JsonNode& access : types) {
      ACCORD_ASSIGN_OR_RETURN(std::string known, read_channel_type(access));
      buffer.types.push_back(std::move(known));
    }
    parts.remote_buffers.push_back(std::move(buffer));
  }
  return {};
}

}  // namespace

Status unsupported(const JsonNode& node, std::string_view problem) {
  return node.error_as(StatusCode::kUnsupported, problem);
}

std::string_view to_string(Memory memory) {
  return memory == Memory::kInput ? "i" : memory == Memory::kOutput ? "o" : "s";
}

Result<Memory> read_memory(const JsonNode& node) {
  return node.one_of("buffer", {Memory::kInput, Memory::kOutput, Memory::kScratch});
}

Result<std::string> read_channel_type(const JsonNode& node) {
  ACCORD_ASSIGN_OR_RETURN(const std::string type, node.text());
  if (type == kSwitch) return node.error("a switch channel connects no pair of ranks");
  if (type == "memory" || type == "port") return type;
  return node.error(fmt::format("\"{}\" is not a type of channel; available: memory, port and switch", type));
}

Result<GpuParts> read_gpu_parts(const JsonNode& node, Rank rank, int size) {
  ACCORD_ASSIGN_OR_RETURN(const JsonNode id_node, node.required("id"));
  ACCORD_ASSIGN_OR_RETURN(const int id, id_node.integer());
  if (id != rank) return id_node.error(fmt::format("{} where {} is expected", id, rank));
  GpuParts parts;
  constexpr std::array<std::string_view, 3> kCounts = {"input_chunks", "output_chunks", "scratch_chunks"};
  for (std::size_t i = 0; i < kCounts.size(); ++i) {
    ACCORD_ASSIGN_OR_RETURN(const JsonNode count, node.required(kCounts[i]));
    ACCORD_ASSIGN_OR_RETURN(parts.chunks[i], count.integer(i < 2 ? 1 : 0, kMaxChunksPerGpu));
  }
  ACCORD_RETURN_IF_ERROR(read_channels(node, rank, size, parts));
  ACCORD_RETURN_IF_ERROR(read_remote_buffers(node, rank, size, parts));
  return parts;
}

Result<BlockParts> read_block_parts(const JsonNode& block, const GpuParts& gpu) {
  BlockParts parts;
  ACCORD_ASSIGN_OR_RETURN(const std::vector<JsonNode> channels, block.items_at("channels"));
  for (const JsonNode& entry : channels) {
    ACCORD_ASSIGN_OR_RETURN(const JsonNode type_node, entry.required("channel_type"));
    ACCORD_ASSIGN_OR_RETURN(const bool of_switch, is_switch(type_node));
    ACCORD_ASSIGN_OR_RETURN(const JsonNode ids_node, entry.required("channel_ids"));
    ACCORD_ASSIGN_OR_RETURN(const std::vector<JsonNode> ids, ids_node.items());
    for (std::size_t i = 0; of_switch && i < ids.size(); ++i) {
      ACCORD_ASSIGN_OR_RETURN(const int id, ids[i].integer(0, static_cast<int>(gpu.switches.size()) - 1));
      parts.switches.push_back(gpu.switches[static_cast<std::size_t>(id)]);
    }
    if (of_switch) continue;
    ACCORD_ASSIGN_OR_RETURN(const std::string type, read_channel_type(type_node));
    const auto known = gpu.channels.find(type);
    const int count = known == gpu.channels.end() ? 0 : static_cast<int>(known->second.size());
    for (const JsonNode& id_node : ids) {
      ACCORD_ASSIGN_OR_RETURN(const int id, id_node.integer(0, count - 1));
      parts.channels[type].push_back(known->second[static_cast<std::size_t>(id)]);
    }
  }
  ACCORD_ASSIGN_OR_RETURN(const std::vector<JsonNode> refs, block.items_at("remote_buffer_refs"));
  for (const JsonNode& entry : refs) {
    ACCORD_ASSIGN_OR_RETURN(const JsonNode type_node, entry.required("access_channel_type"));
    ACCORD_ASSIGN_OR_RETURN(const std::string type, read_channel_type(type_node));
    ACCORD_ASSIGN_OR_RETURN(const JsonNode ids_node, entry.required("remote_buffer_ids"));
    ACCORD_ASSIGN_OR_RETURN(const std::vector<JsonNode> ids, ids_node.items());
    for (const JsonNode& id_node : ids) {
      ACCORD_ASSIGN_OR_RETURN(const int id, id_node.integer(0, static_cast<int>(gpu.remote_buffers.size()) - 1));
      const RemoteBuffer& buffer = gpu.remote_buffers[static_cast<std::size_t>(id)];
      if (!buffer.types.empty() && std::ranges::find(buffer.types, type) == buffer.types.end())
        return id_node.error(fmt::format("remote buffer {} is not reached by channels of type {}", id, type));
      parts.remote_buffers[type].push_back(buffer);
    }
  }
  return parts;
}

}  // namespace accord::plan::mscclpp
