// An op names its channels by their position in its thread block's list, which refers to positions in the GPU's list
// of that type; remote buffers likewise. Ops of a pipeline run over a chunk in small units, one after the other; here
// each runs once over the whole chunk, since rounds cut long messages anyway. Thread blocks that share an op's chunks
// (tbg_info) need finer chunks: all counts and indexes are multiplied by the least common multiple of the groups'
// sizes.

#include "plan/mscclpp/read.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>

#include "base/json_node.hpp"
#include "plan/mscclpp/parts.hpp"
#include "plan/step_rules.hpp"

namespace accord::plan::mscclpp {
namespace {

constexpr int kMaxRefinement = 64;
constexpr int kMaxOps = 1 << 16;  // per thread block

constexpr std::array kOps = {
    OpKind{.name = "nop"},
    OpKind{.name = "flush"},
    OpKind{.name = "barrier", .action = Action::kBarrier},
    OpKind{.name = "sem_acquire", .action = Action::kAcquire},
    OpKind{.name = "sem_release", .action = Action::kRelease},
    OpKind{.name = "signal", .action = Action::kSignal},
    OpKind{.name = "rlxsignal", .action = Action::kSignal},
    OpKind{.name = "wait", .action = Action::kWait},
    OpKind{.name = "rlxwait", .action = Action::kWait},
    OpKind{.name = "copy", .action = Action::kMove, .local_destinations = 1},
    OpKind{.name = "put", .action = Action::kMove, .sends = true},
    OpKind{.name = "pws", .action = Action::kMove, .sends = true, .signals = true},
    OpKind{.name = "pwsf", .action = Action::kMove, .sends = true, .signals = true},
    OpKind{.name = "get", .action = Action::kMove, .first_source_remote = true, .local_destinations = 1},
    OpKind{.name = "ppkt", .action = Action::kMove, .sends = true, .into_packets = true},
    OpKind{.name = "rppkt", .action = Action::kMove, .sources_in_packets = true, .sends = true, .into_packets = true},
    OpKind{.name = "cpkt", .action = Action::kMove, .local_destinations = 1, .into_packets = true},
    OpKind{.name = "upkt", .action = Action::kMove, .sources_in_packets = true, .local_destinations = 1},
    OpKind{.name = "re", .action = Action::kReduce, .local_destinations = 1},
    OpKind{.name = "res", .action = Action::kReduce, .local_destinations = 1, .sends = true},
    OpKind{.name = "rre", .action = Action::kReduce, .other_sources_remote = true, .local_destinations = 1},
    OpKind{.name = "rres",
           .action = Action::kReduce,
           .other_sources_remote = true,
           .local_destinations = 1,
           .sends = true},
    OpKind{.name = "repkt", .action = Action::kReduce, .sources_in_packets = true, .local_destinations = 1},
    OpKind{.name = "respkt",
           .action = Action::kReduce,
           .sources_in_packets = true,
           .local_destinations = 1,
           .sends = true,
           .into_packets = true},
    OpKind{.name = "recpkt",
           .action = Action::kReduce,
           .sources_in_packets = true,
           .local_destinations = 2,
           .into_packets = true},
    OpKind{.name = "recspkt",
           .action = Action::kReduce,
           .sources_in_packets = true,
           .local_destinations = 2,
           .sends = true,
           .into_packets = true},
    OpKind{.name = "glres", .action = Action::kReduce, .from_switch = true, .to_switch = true},
    OpKind{.name = "gstore", .action = Action::kMove, .to_switch = true},
    OpKind{.name = "gstorepkt",
           .action = Action::kMove,
           .sources_in_packets = true,
           .into_packets = true,
           .to_switch = true},
};
constexpr std::string_view kPipeline = "pipeline";

Result<Collective> read_collective(const JsonNode& node) {
  ACCORD_ASSIGN_OR_RETURN(const std::string name, node.text());
  if (name == "allreduce") return Collective::kAllReduce;
  if (name == "allgather") return Collective::kAllGather;
  if (name == "reducescatter") return Collective::kReduceScatter;
  if (name == "alltoall") return Collective::kAllToAll;
  for (const std::string_view own : {"sendrecv", "custom", "test"}) {
    if (name == own)
      return unsupported(node, fmt::format("\"{}\" is a collective that no call of a communicator has", name));
  }
  static constexpr std::array<std::string_view, 4> kNames = {"allreduce", "allgather", "reducescatter", "alltoall"};
  return node.error(unknown_name("collective", name, kNames).message());
}

class Reader {
 public:
  Result<ExecutionPlan> run(const JsonNode& root) {
    ACCORD_RETURN_IF_ERROR(read_head(root));
    ACCORD_ASSIGN_OR_RETURN(const JsonNode gpus_node, root.required("gpus"));
    ACCORD_ASSIGN_OR_RETURN(const std::vector<JsonNode> gpus, gpus_node.items());
    if (gpus.empty() || gpus.size() > kMaxSize) return gpus_node.error(fmt::format("{} GPUs", gpus.size()));
    size_ = static_cast<int>(gpus.size());
    for (int rank = 0; rank < size_; ++rank) {
      const JsonNode& gpu = gpus[static_cast<std::size_t>(rank)];
      ACCORD_ASSIGN_OR_RETURN(GpuParts parts, read_gpu_parts(gpu, rank, size_));
      parts_.push_back(std::move(parts));
      if (parts_[0].chunks[0] != parts_.back().chunks[0] || parts_[0].chunks[1] != parts_.back().chunks[1])
        return gpu.error("has other numbers of input and output chunks than gpus[0]");
    }
    for (const JsonNode& gpu : gpus) ACCORD_RETURN_IF_ERROR(find_refinement(gpu));
    std::int64_t chunks = 0;
    for (const GpuParts& parts : parts_) chunks += (std::int64_t{parts.chunks[0]} + parts.chunks[1]) * refinement_;
    if (chunks > kMaxChunks)
      return gpus_node.error(fmt::format("{} chunks on all ranks; a plan has at most {}", chunks, kMaxChunks));
    for (int rank = 0; rank < size_; ++rank) {
      ACCORD_ASSIGN_OR_RETURN(Gpu gpu, read_gpu(gpus[static_cast<std::size_t>(rank)], rank));
      plan_.gpus.push_back(std::move(gpu));
    }
    plan_.input_chunks = parts_[0].chunks[0] * refinement_;
    plan_.output_chunks = parts_[0].chunks[1] * refinement_;
    return std::move(plan_);
  }

 private:
  Status read_head(const JsonNode& root) {
    ACCORD_ASSIGN_OR_RETURN(const JsonNode name, root.required("name"));
    ACCORD_ASSIGN_OR_RETURN(plan_.name, name.name());
    ACCORD_ASSIGN_OR_RETURN(const JsonNode collective, root.required("collective"));
    ACCORD_ASSIGN_OR_RETURN(plan_.collective, read_collective(collective));
    ACCORD_ASSIGN_OR_RETURN(const JsonNode protocol_node, root.required("protocol"));
    ACCORD_ASSIGN_OR_RETURN(const std::string protocol, protocol_node.text());
    if (protocol != "Simple" && protocol != "LL")
      return unsupported(protocol_node,
                         fmt::format("protocol \"{}\" is not known; available: Simple and LL", protocol));
    ACCORD_ASSIGN_OR_RETURN(const JsonNode in_place, root.required("inplace"));
    ACCORD_ASSIGN_OR_RETURN(plan_.in_place, in_place.boolean());
    return {};
  }

  // Searches all ops, including those of pipelines, for the sizes of groups of thread blocks.
  Status find_refinement(const JsonNode& gpu) {
    ACCORD_ASSIGN_OR_RETURN(const JsonNode blocks_node, gpu.required("threadblocks"));
    ACCORD_ASSIGN_OR_RETURN(const std::vector<JsonNode> blocks, blocks_node.items());
    for (const JsonNode& block : blocks) {
      ACCORD_ASSIGN_OR_RETURN(const JsonNode ops, block.required("ops"));
      ACCORD_RETURN_IF_ERROR(find_refinement_of_ops(ops, false));
    }
    return {};
  }
  Status find_refinement_of_ops(const JsonNode& node, bool in_pipeline) {
    ACCORD_ASSIGN_OR_RETURN(const std::vector<JsonNode> ops, node.items());
    for (const JsonNode& op : ops) {
      if (op.has("ops")) {
        if (in_pipeline) return unsupported(op, "a pipeline inside a pipeline");
        ACCORD_RETURN_IF_ERROR(find_refinement_of_ops(op.at("ops"), true));
      }
      if (!op.has("tbg_info")) continue;
      ACCORD_ASSIGN_OR_RETURN(const JsonNode size_node, op.at("tbg_info").required("tbg_size"));
      ACCORD_ASSIGN_OR_RETURN(const int size, size_node.integer(1, kMaxRefinement));
      refinement_ = std::lcm(refinement_, size);
      if (refinement_ > kMaxRefinement) return unsupported(size_node, "groups of thread blocks of too many sizes");
    }
    return {};
  }

  Result<Gpu> read_gpu(const JsonNode& node, Rank rank) {
    Gpu gpu;
    ACCORD_ASSIGN_OR_RETURN(const std::vector<JsonNode> semaphores, node.items_at("semaphores"));
    for (const JsonNode& semaphore : semaphores) {
      ACCORD_ASSIGN_OR_RETURN(const JsonNode value, semaphore.required("init_value"));
      ACCORD_ASSIGN_OR_RETURN(const int initial, value.integer(0, kMaxOps));
      gpu.semaphores.push_back(initial);
    }
    ACCORD_ASSIGN_OR_RETURN(const std::vector<JsonNode> blocks, node.at("threadblocks").items());
    if (blocks.empty() || blocks.size() > kMaxLanes)
      return node.at("threadblocks")
          .error(fmt::format("{} thread blocks; there may be 1 to {}", blocks.size(), kMaxLanes));
    for (const JsonNode& block : blocks) {
      ACCORD_ASSIGN_OR_RETURN(const BlockParts parts, read_block_parts(block, parts_[static_cast<std::size_t>(rank)]));
      OpContext context{rank, &parts, static_cast<int>(gpu.semaphores.size()), static_cast<int>(blocks.size())};
      std::vector<Op>& ops = gpu.lanes.emplace_back();
      ACCORD_RETURN_IF_ERROR(read_ops(block.at("ops"), context, ops));
    }
    return gpu;
  }

  struct OpContext {
    Rank rank;
    const BlockParts* parts;
    int semaphores;
    int lanes;
  };

  Status read_ops(const JsonNode& node, const OpContext& context, std::vector<Op>& ops) {
    ACCORD_ASSIGN_OR_RETURN(const std::vector<JsonNode> items, node.items());
    for (const JsonNode& item : items) {
      ACCORD_ASSIGN_OR_RETURN(const JsonNode name_node, item.required("name"));
      ACCORD_ASSIGN_OR_RETURN(const std::string name, name_node.text());
      if (ops.size() >= kMaxOps) return item.error(fmt::format("more than {} ops in a thread block", kMaxOps));
      if (name == kPipeline) {
        ACCORD_ASSIGN_OR_RETURN(const JsonNode inner, item.required("ops"));
        ACCORD_RETURN_IF_ERROR(read_ops(inner, context, ops));
        continue;
      }
      ACCORD_ASSIGN_OR_RETURN(Op op, read_op(item, name_node, name, context));
      ops.push_back(std::move(op));
    }
    return {};
  }

  Result<Op> read_op(const JsonNode& node, const JsonNode& name_node, const std::string& name,
                     const OpContext& context) {
    const auto kind = std::ranges::find(kOps, name, &OpKind::name);
    if (kind == kOps.end()) {
      std::vector<std::string_view> names = {kPipeline};
      for (const OpKind& known : kOps) names.push_back(known.name);
      return unsupported(name_node, unknown_name("operation", name, names).message());
    }
    Op op{.kind = kind, .place = node.path()};
    plan_.has_switch_ops = plan_.has_switch_ops || kind->to_switch;
    switch (kind->action) {
      case Action::kNothing: break;
      case Action::kBarrier: ACCORD_RETURN_IF_ERROR(read_barrier(node, context, op)); break;
      case Action::kAcquire:
      case Action::kRelease: ACCORD_RETURN_IF_ERROR(read_semaphores(node, context, op)); break;
      case Action::kSignal:
      case Action::kWait: ACCORD_RETURN_IF_ERROR(read_op_channels(node, context, op)); break;
      case Action::kMove:
      case Action::kReduce: ACCORD_RETURN_IF_ERROR(read_movement(node, context, op)); break;
    }
    return op;
  }

  Status read_barrier(const JsonNode& node, const OpContext& context, Op& op) {
    ACCORD_ASSIGN_OR_RETURN(const JsonNode id, node.required("barrier_id"));
    ACCORD_ASSIGN_OR_RETURN(op.barrier, id.integer(0, kMaxIds - 1));
    ACCORD_ASSIGN_OR_RETURN(const JsonNode lanes, node.required("num_threadblocks"));
    ACCORD_ASSIGN_OR_RETURN(op.barrier_lanes, lanes.integer(1, context.lanes));
    return {};
  }

  Status read_semaphores(const JsonNode& node, const OpContext& context, Op& op) {
    ACCORD_ASSIGN_OR_RETURN(const JsonNode ids_node, node.required("semaphore_ids"));
    ACCORD_ASSIGN_OR_RETURN(const std::vector<JsonNode> ids, ids_node.items());
    for (const JsonNode& id_node : ids) {
      ACCORD_ASSIGN_OR_RETURN(const int id, id_node.integer(0, context.semaphores - 1));
      op.semaphores.push_back(id);
    }
    return {};
  }

  Status read_op_channels(const JsonNode& node, const OpContext& context, Op& op) {
    ACCORD_ASSIGN_OR_RETURN(const JsonNode type_node, node.required("channel_type"));
    ACCORD_ASSIGN_OR_RETURN(const std::string type, read_channel_type(type_node));
    ACCORD_ASSIGN_OR_RETURN(const JsonNode ids_node, node.required("channel_ids"));
    ACCORD_ASSIGN_OR_RETURN(const std::vector<JsonNode> ids, ids_node.items());
    const auto known = context.parts->channels.find(type);
    const int count = known == context.parts->channels.end() ? 0 : static_cast<int>(known->second.size());
    for (const JsonNode& id_node : ids) {
      ACCORD_ASSIGN_OR_RETURN(const int id, id_node.integer(0, count - 1));
      op.channels.push_back(known->second[static_cast<std::size_t>(id)]);
    }
    return {};
  }

  Status read_movement(const JsonNode& node, const OpContext& context, Op& op) {
    const OpKind& kind = *op.kind;
    if (kind.signals) ACCORD_RETURN_IF_ERROR(read_op_channels(node, context, op));
    ACCORD_ASSIGN_OR_RETURN(const JsonNode sources_node, node.required("src_buff"));
    ACCORD_ASSIGN_OR_RETURN(const JsonNode destinations_node, node.required("dst_buff"));
    ACCORD_ASSIGN_OR_RETURN(const std::vector<JsonNode> sources, sources_node.items());
    ACCORD_ASSIGN_OR_RETURN(const std::vector<JsonNode> destinations, destinations_node.items());
    for (std::size_t i = 0; i < sources.size(); ++i) {
      const bool remote = kind.first_source_remote || (i > 0 && kind.other_sources_remote);
      ACCORD_ASSIGN_OR_RETURN(Span span, read_span(sources[i], node, context, whose(kind.from_switch, remote)));
      op.sources.push_back(std::move(span));
    }
    // A move has as many local destinations as sources; a reduction as many as its kind.
    const std::size_t local = kind.action == Action::kMove ? (kind.sends ? 0 : destinations.size())
                                                           : static_cast<std::size_t>(kind.local_destinations);
    for (std::size_t i = 0; i < destinations.size(); ++i) {
      ACCORD_ASSIGN_OR_RETURN(Span span, read_span(destinations[i], node, context, whose(kind.to_switch, i >= local)));
      op.destinations.push_back(std::move(span));
    }
    return check_movement(node, op, local);
  }

  Status check_movement(const JsonNode& node, const Op& op, std::size_t local) const {
    const OpKind& kind = *op.kind;
    const std::size_t sources = op.sources.size(), destinations = op.destinations.size();
    if (kind.from_switch) {
      if (sources != 1 || destinations != 1 || op.sources[0].ranks != op.destinations[0].ranks)
        return node.error(fmt::format("{} has one source and one destination, of the same ranks", kind.name));
    } else if (kind.action == Action::kMove) {
      if (destinations == 0 || (sources != destinations && sources != 1))
        return node.error(fmt::format("{} has {} sources for {} destinations", kind.name, sources, destinations));
    } else if (sources < 2 || destinations < local || (!kind.sends && destinations > local)) {
      return node.error(fmt::format("{} has {} sources and {} destinations", kind.name, sources, destinations));
    }
    const int size = op.sources[0].size;
    const auto differs = [&](const Span& span) { return span.size != size; };
    const bool pairs = kind.action == Action::kMove && sources == destinations;
    for (std::size_t i = 0; pairs && i < sources; ++i) {
      if (op.sources[i].size != op.destinations[i].size)
        return node.error(fmt::format("source {} and destination {} have different sizes", i, i));
    }
    if (!pairs && (std::ranges::any_of(op.sources, differs) || std::ranges::any_of(op.destinations, differs)))
      return node.error("sources and destinations have different sizes");
    return {};
  }

  enum class Whose : std::uint8_t { kOwn, kPeers, kOfSwitch };
  static Whose whose(bool of_switch, bool remote) {
    return of_switch ? Whose::kOfSwitch : remote ? Whose::kPeers : Whose::kOwn;
  }

  Result<Span> read_span(const JsonNode& node, const JsonNode& op, const OpContext& context, Whose whose) const {
    Span span{.first = {.rank = context.rank}};
    if (whose == Whose::kOfSwitch) {
      if (!node.has("switch_channel_id")) return node.error("a \"switch_channel_id\" is expected here");
      const int count = static_cast<int>(context.parts->switches.size());
      ACCORD_ASSIGN_OR_RETURN(const int id, node.at("switch_channel_id").integer(0, count - 1));
      const SwitchChannel& channel = context.parts->switches[static_cast<std::size_t>(id)];
      span.first.memory = channel.memory;
      span.ranks = channel.ranks;
    } else if (whose == Whose::kPeers) {
      if (!node.has("buffer_id")) return node.error("a peer's memory, given by its \"buffer_id\", is expected here");
      ACCORD_ASSIGN_OR_RETURN(const JsonNode type_node, op.required("channel_type"));
      ACCORD_ASSIGN_OR_RETURN(const std::string type, read_channel_type(type_node));
      const auto known = context.parts->remote_buffers.find(type);
      const int count = known == context.parts->remote_buffers.end() ? 0 : static_cast<int>(known->second.size());
      ACCORD_ASSIGN_OR_RETURN(const int id, node.at("buffer_id").integer(0, count - 1));
      const RemoteBuffer& buffer = known->second[static_cast<std::size_t>(id)];
      span.first.rank = buffer.rank;
      span.first.memory = buffer.memory;
    } else {
      if (!node.has("type")) return node.error("the rank's own memory, given by its \"type\", is expected here");
      ACCORD_ASSIGN_OR_RETURN(span.first.memory, read_memory(node.at("type")));
    }
    const auto chunks_of = [&](Rank rank) {
      return parts_[static_cast<std::size_t>(rank)].chunks[static_cast<std::size_t>(span.first.memory)];
    };
    int chunks = chunks_of(span.first.rank);
    for (const Rank rank : span.ranks) chunks = std::min(chunks, chunks_of(rank));
    ACCORD_ASSIGN_OR_RETURN(const JsonNode index_node, node.required("index"));
    ACCORD_ASSIGN_OR_RETURN(const int index, index_node.integer(0, chunks - 1));
    ACCORD_ASSIGN_OR_RETURN(const JsonNode size_node, node.required("size"));
    ACCORD_ASSIGN_OR_RETURN(const int size, size_node.integer(1, chunks - index));
    span.first.index = index * refinement_;
    span.size = size * refinement_;
    if (op.has("tbg_info")) ACCORD_RETURN_IF_ERROR(take_share(op.at("tbg_info"), span));
    return span;
  }

  // This thread block's part of a span that a group of blocks shares.
  static Status take_share(const JsonNode& node, Span& span) {
    ACCORD_ASSIGN_OR_RETURN(const int size, node.at("tbg_size").integer());
    ACCORD_ASSIGN_OR_RETURN(const JsonNode id_node, node.required("tb_id"));
    ACCORD_ASSIGN_OR_RETURN(const int id, id_node.integer(0, size - 1));
    span.size /= size;
    span.first.index += id * span.size;
    return {};
  }

  ExecutionPlan plan_;
  int size_ = 0;
  int refinement_ = 1;
  std::vector<GpuParts> parts_;
};

}  // namespace

Result<ExecutionPlan> read(std::string_view text) {
  ACCORD_ASSIGN_OR_RETURN(const JsonTree tree, JsonTree::parse(text, "MSCCL++ plan"));
  return Reader().run(tree.root());
}

}  // namespace accord::plan::mscclpp
