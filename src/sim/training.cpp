#include "sim/training.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "sim/layer_costs.hpp"
#include "sim/pipeline.hpp"
#include "sim/toml_reader.hpp"

namespace accord::sim {
namespace {

using Need = TomlReader::Need;

constexpr std::uint32_t kMain = 0, kReceives = 1, kSends = 2, kGradients = 3;
constexpr std::size_t kStreams = 4;
constexpr double kGradientBytes = 4;
constexpr double kOptimizerBytes = 28;  // read and written for each parameter: Adam's float32 weights and two moments

Status read_tables(const toml::table& file, TrainingStep& training) {
  constexpr std::array<std::string_view, 2> kTables = {"model", "step"};
  ACCORD_RETURN_IF_ERROR(check_tables(file, kTables, kTables));
  TransformerNumbers& model = training.model;
  TomlReader reader(*file["model"].as_table(), "model");
  reader.count("layers", model.layers);
  reader.count("hidden", model.hidden);
  reader.count("ffn", model.ffn, Need::kOptional);
  reader.count("heads", model.heads);
  model.kv_heads = model.heads;
  reader.count("kv_heads", model.kv_heads, Need::kOptional);
  reader.count("vocabulary", model.vocabulary);
  reader.flag("gated", model.gated);
  reader.count("experts", model.experts, Need::kOptional);
  const Need with_experts = model.experts > 0 ? Need::kRequired : Need::kOptional;
  reader.count("experts_per_token", model.experts_per_token, with_experts);
  reader.count("expert_ffn", model.expert_ffn, with_experts);
  reader.count("dense_layers", model.dense_layers, Need::kOptional, 0);
  ACCORD_RETURN_IF_ERROR(reader.finish());
  StepNumbers& step = training.step;
  TomlReader steps(*file["step"].as_table(), "step");
  steps.count("sequence", step.sequence);
  steps.count("microbatch", step.microbatch, Need::kOptional);
  steps.count("microbatches", step.microbatches, Need::kOptional);
  steps.count("virtual_stages", step.virtual_stages, Need::kOptional);
  steps.flag("sequence_parallel", step.sequence_parallel);
  steps.flag("recompute", step.recompute);
  steps.flag("distributed_optimizer", step.distributed_optimizer);
  steps.flag("overlap_gradients", step.overlap_gradients);
  ACCORD_RETURN_IF_ERROR(steps.finish());
  if (model.hidden % model.heads != 0 || model.heads % model.kv_heads != 0)
    return invalid_toml("model.heads", nullptr, "expected a divisor of hidden, and a multiple of kv_heads");
  if (model.experts > 0 && model.experts_per_token > model.experts)
    return invalid_toml("model.experts_per_token", nullptr, "expected at most as many as there are experts");
  if (model.ffn == 0 && (model.experts == 0 || model.dense_layers > 0))
    return invalid_toml("model.ffn", nullptr, "is missing, although there are layers without experts");
  return {};
}

Status check(const TrainingStep& training, const TrainingGroups& groups, const Machine& machine) {
  const auto divides = [](int a, int b, std::string_view what, std::string_view into) -> Status {
    if (a % b == 0) return {};
    return {StatusCode::kInvalidArgument, fmt::format("{} {} do not divide into {} {}", a, what, b, into)};
  };
  const auto& [model, step] = training;
  if (machine.host.flops_per_second == 0)
    return {StatusCode::kInvalidArgument, "the machine has no host.flops_per_second, which training steps need"};
  ACCORD_RETURN_IF_ERROR(divides(model.layers, groups.pp * step.virtual_stages, "layers", "stages"));
  ACCORD_RETURN_IF_ERROR(divides(model.heads, groups.tp, "heads", "tensor-parallel ranks"));
  ACCORD_RETURN_IF_ERROR(divides(step.sequence, groups.cp * groups.tp, "tokens", "ranks"));
  if (model.experts > 0) ACCORD_RETURN_IF_ERROR(divides(model.experts, groups.ep, "experts", "expert-parallel ranks"));
  if (model.experts > 0 && groups.tp > 1 && !step.sequence_parallel)
    return {StatusCode::kInvalidArgument, "experts with tensor parallelism need step.sequence_parallel"};
  if (step.virtual_stages > 1) {
    if (groups.pp == 1)
      return {StatusCode::kInvalidArgument, "virtual_stages above 1 need a pipeline, that is pp above 1"};
    ACCORD_RETURN_IF_ERROR(divides(step.microbatches, groups.pp, "microbatches", "stages, as interleaving needs"));
  }
  return {};
}

class TrainingSchedule {
 public:
  TrainingSchedule(const TrainingStep& training, const TrainingGroups& groups, const Machine& machine,
                   const topology::Topology& topology, std::size_t slot_bytes)
      : model_(training.model),
        step_(training.step),
        groups_(groups),
        machine_(machine),
        costs_(training, groups),
        builder_(machine, topology, slot_bytes),
        last_(static_cast<std::size_t>(topology.size()) * kStreams, kNone) {}

  Result<Schedule> build() {
    by_stage_.resize(static_cast<std::size_t>(groups_.pp));
    std::vector<int> stage_of(last_.size() / kStreams);
    for (const Members& pipeline : groups_.pipeline)
      for (std::size_t stage = 0; stage < pipeline->size(); ++stage) {
        by_stage_[stage].ranks.push_back((*pipeline)[stage]);
        stage_of[static_cast<std::size_t>((*pipeline)[stage])] = static_cast<int>(stage);
      }
    const auto sort = [&](const std::vector<Members>& all, std::vector<Members> StageRanks::*field) {
      for (const Members& members : all)
        if (members->size() > 1)
          (by_stage_[static_cast<std::size_t>(stage_of[static_cast<std::size_t>(members->front())])].*field)
              .push_back(members);
    };
    sort(groups_.tensor, &StageRanks::tensor);
    sort(groups_.context, &StageRanks::context);
    sort(groups_.expert, &StageRanks::expert);
    sort(groups_.data, &StageRanks::data);
    sort(groups_.expert_data, &StageRanks::expert_data);
    for (int stage = 0; stage < groups_.pp; ++stage) ACCORD_RETURN_IF_ERROR(add_stage(stage));
    return std::move(builder_).take();
  }

 private:
  struct StageRanks {
    std::vector<Rank> ranks;  // by pipeline
    std::vector<Members> tensor, context, expert, data, expert_data;
  };
  // A microbatch that goes through a part of the model.
  struct Part {
    int stage = 0, chunk = 0, microbatch = 0;
    bool is_forward = true;
  };

  StageRanks& ranks_of(int stage) { return by_stage_[static_cast<std::size_t>(stage)]; }
  TaskId& last(Rank rank, std::uint32_t stream) { return last_[static_cast<std::size_t>(rank) * kStreams + stream]; }

  // Streams run their tasks in order.
  void chain(Rank rank, std::uint32_t stream, TaskId task) {
    TaskId& before = last(rank, stream);
    if (before != kNone) builder_.after_end(before, task);
    before = task;
  }

  TaskId add(Rank rank, std::uint32_t stream, std::string_view label) {
    const TaskId task = builder_.add_task(rank, stream, label);
    chain(rank, stream, task);
    return task;
  }

  void compute(int stage, std::string_view label, double seconds) {
    for (const Rank rank : ranks_of(stage).ranks) builder_.compute(add(rank, kMain, label), seconds);
  }

  void compute_flops(int stage, std::string_view label, double flops) {
    compute(stage, label, flops / machine_.host.flops_per_second);
  }

  // Each group makes the call. On other streams it waits for what its ranks have computed.
  Status call(const std::vector<Members>& groups, std::uint32_t stream, Collective collective, double bytes,
              DType dtype, std::string_view label) {
    const std::uint64_t count = std::max<std::uint64_t>(1, static_cast<std::uint64_t>(bytes) / size_of(dtype));
    for (const Members& members : groups) {
      ACCORD_ASSIGN_OR_RETURN(
          const std::vector<TaskId> tasks,
          builder_.call({.collective = collective, .dtype = dtype, .count = count}, members, stream, label));
      for (std::size_t i = 0; i < tasks.size(); ++i) {
        const Rank rank = (*members)[i];
        if (stream != kMain && last(rank, kMain) != kNone) builder_.after_end(last(rank, kMain), tasks[i]);
        chain(rank, stream, tasks[i]);
      }
    }
    return {};
  }

  Status add_stage(int stage) {
    for (const PipelineItem& item : pipeline_order(stage, groups_.pp, step_.virtual_stages, step_.microbatches)) {
      const Part part{stage, item.chunk, item.microbatch, item.is_forward};
      receive(part);
      ACCORD_RETURN_IF_ERROR(item.is_forward ? add_forward(part) : add_backward(part));
      send(part);
    }
    return add_update(stage);
  }

  int virtual_stage_of(const Part& part) const { return part.chunk * groups_.pp + part.stage; }
  int last_virtual_stage() const { return groups_.pp * step_.virtual_stages - 1; }
  int layers_of_chunk() const { return model_.layers / (groups_.pp * step_.virtual_stages); }
  int first_layer_of(const Part& part) const { return virtual_stage_of(part) * layers_of_chunk(); }

  // The end of a message between virtual stages that comes first waits here for the other one.
  void meet(const Part& part, std::size_t pipeline, int from, TaskId task, bool sends) {
    const auto key = std::tuple(pipeline, part.is_forward, part.microbatch, from);
    const auto [known, is_new] = messages_.try_emplace(key, task);
    if (is_new) return;
    builder_.message(sends ? task : known->second, sends ? known->second : task,
                     static_cast<std::uint64_t>(costs_.boundary_bytes()));
    messages_.erase(known);
  }

  void receive(const Part& part) {
    const int here = virtual_stage_of(part), from = part.is_forward ? here - 1 : here + 1;
    if (from < 0 || from > last_virtual_stage()) return;
    const std::vector<Rank>& ranks = ranks_of(part.stage).ranks;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      const TaskId task = add(ranks[i], kReceives, part.is_forward ? "pp activations" : "pp gradients");
      meet(part, i, from, task, false);
      const TaskId begin = add(ranks[i], kMain, part.is_forward ? "forward" : "backward");
      builder_.after_end(task, begin);
    }
  }

  void send(const Part& part) {
    const int here = virtual_stage_of(part), to = part.is_forward ? here + 1 : here - 1;
    if (to < 0 || to > last_virtual_stage()) return;
    const std::vector<Rank>& ranks = ranks_of(part.stage).ranks;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      const TaskId done = last(ranks[i], kMain);
      const TaskId task = add(ranks[i], kSends, part.is_forward ? "pp activations" : "pp gradients");
      builder_.after_end(done, task);
      meet(part, i, here, task, true);
    }
  }

  // Makes the call of tensor parallelism before a divided matrix (`gathers`), or after one.
  Status tensor(int stage, bool gathers) {
    if (groups_.tp == 1 || (gathers && !step_.sequence_parallel)) return {};
    const std::vector<Members>& groups = ranks_of(stage).tensor;
    const double bytes = costs_.activation_bytes();
    if (!step_.sequence_parallel)
      return call(groups, kMain, Collective::kAllReduce, bytes, DType::kBFloat16, "tp all_reduce");
    return gathers ? call(groups, kMain, Collective::kAllGather, bytes / groups_.tp, DType::kBFloat16, "tp all_gather")
                   : call(groups, kMain, Collective::kReduceScatter, bytes / groups_.tp, DType::kBFloat16,
                          "tp reduce_scatter");
  }

  Status exchange_experts(int stage) {
    if (groups_.ep == 1) return {};
    return call(ranks_of(stage).expert, kMain, Collective::kAllToAll, costs_.dispatched_bytes() / groups_.ep,
                DType::kBFloat16, "ep all_to_all");
  }

  // One pass through a layer; the backward pass computes twice as much, and exchanges the same in the other order.
  Status add_layer(int stage, int layer, std::string_view label, double factor) {
    const bool has_experts = costs_.has_experts(layer);
    ACCORD_RETURN_IF_ERROR(tensor(stage, true));
    if (groups_.cp > 1)
      ACCORD_RETURN_IF_ERROR(call(ranks_of(stage).context, kMain, Collective::kAllGather, costs_.kv_bytes(),
                                  DType::kBFloat16, "cp all_gather"));
    compute_flops(stage, label, factor * costs_.attention_flops());
    if (groups_.cp > 1 && factor > 1)
      ACCORD_RETURN_IF_ERROR(call(ranks_of(stage).context, kMain, Collective::kReduceScatter, costs_.kv_bytes(),
                                  DType::kBFloat16, "cp reduce_scatter"));
    ACCORD_RETURN_IF_ERROR(tensor(stage, false));
    if (has_experts) {
      ACCORD_RETURN_IF_ERROR(exchange_experts(stage));
      compute_flops(stage, label, factor * costs_.expert_flops());
      return exchange_experts(stage);
    }
    ACCORD_RETURN_IF_ERROR(tensor(stage, true));
    compute_flops(stage, label, factor * costs_.mlp_flops());
    return tensor(stage, false);
  }

  Status add_forward(const Part& part) {
    for (int layer = 0; layer < layers_of_chunk(); ++layer)
      ACCORD_RETURN_IF_ERROR(add_layer(part.stage, first_layer_of(part) + layer, "forward", 1));
    if (virtual_stage_of(part) == last_virtual_stage()) compute_flops(part.stage, "forward", costs_.head_flops());
    return {};
  }

  Status add_backward(const Part& part) {
    if (virtual_stage_of(part) == last_virtual_stage()) compute_flops(part.stage, "backward", 2 * costs_.head_flops());
    for (int layer = layers_of_chunk() - 1; layer >= 0; --layer) {
      const int number = first_layer_of(part) + layer;
      if (step_.recompute) ACCORD_RETURN_IF_ERROR(add_layer(part.stage, number, "recompute", 1));
      ACCORD_RETURN_IF_ERROR(add_layer(part.stage, number, "backward", 2));
      if (step_.overlap_gradients && part.microbatch == step_.microbatches - 1)
        ACCORD_RETURN_IF_ERROR(reduce(part.stage, costs_.dense_parameters(number), costs_.expert_parameters(number)));
    }
    return {};
  }

  Status reduce(int stage, double dense, double experts) {
    const StageRanks& ranks = ranks_of(stage);
    const std::uint32_t stream = step_.overlap_gradients ? kGradients : kMain;
    ACCORD_RETURN_IF_ERROR(reduce_over(ranks.data, groups_.dp, stream, dense));
    return reduce_over(ranks.expert_data, groups_.expert_dp, stream, experts);
  }

  Status reduce_over(const std::vector<Members>& groups, int size, std::uint32_t stream, double parameters) {
    const double bytes = kGradientBytes * parameters;
    if (size == 1 || parameters == 0) return {};
    if (!step_.distributed_optimizer)
      return call(groups, stream, Collective::kAllReduce, bytes, DType::kFloat32, "dp all_reduce");
    return call(groups, stream, Collective::kReduceScatter, bytes / size, DType::kFloat32, "dp reduce_scatter");
  }

  // The rest of the gradients, the optimizer, and the new parameters.
  Status add_update(int stage) {
    double dense = costs_.embedding_parameters(stage), experts = 0;
    if (step_.overlap_gradients) ACCORD_RETURN_IF_ERROR(reduce(stage, dense, 0));
    for (int chunk = 0; chunk < step_.virtual_stages; ++chunk)
      for (int layer = 0; layer < layers_of_chunk(); ++layer) {
        const int number = (chunk * groups_.pp + stage) * layers_of_chunk() + layer;
        dense += costs_.dense_parameters(number);
        experts += costs_.expert_parameters(number);
      }
    if (!step_.overlap_gradients) ACCORD_RETURN_IF_ERROR(reduce(stage, dense, experts));
    for (const Rank rank : ranks_of(stage).ranks)
      if (last(rank, kGradients) != kNone) {
        const TaskId reduced = last(rank, kGradients);
        builder_.after_end(reduced, add(rank, kMain, "optimizer"));
      }
    const bool is_divided = step_.distributed_optimizer;
    const double updated = is_divided ? dense / groups_.dp + experts / groups_.expert_dp : dense + experts;
    const double bytes = kOptimizerBytes * updated;
    compute(stage, "optimizer", bytes * machine_.host.times.touched.seconds_per_byte(bytes));
    if (!is_divided) return {};
    ACCORD_RETURN_IF_ERROR(gather(ranks_of(stage).data, groups_.dp, dense));
    return gather(ranks_of(stage).expert_data, groups_.expert_dp, experts);
  }

  Status gather(const std::vector<Members>& groups, int size, double parameters) {
    if (size == 1 || parameters == 0) return {};
    return call(groups, kMain, Collective::kAllGather, 2 * parameters / size, DType::kBFloat16, "dp all_gather");
  }

  const TransformerNumbers& model_;
  const StepNumbers& step_;
  const TrainingGroups& groups_;
  const Machine& machine_;
  LayerCosts costs_;
  ScheduleBuilder builder_;
  std::vector<StageRanks> by_stage_;
  std::vector<TaskId> last_;                                            // by rank and stream
  std::map<std::tuple<std::size_t, bool, int, int>, TaskId> messages_;  // by pipeline, direction, microbatch, sender
};

}  // namespace

Result<TrainingStep> training_step_from_toml(std::string_view text) {
  TrainingStep training;
  ACCORD_RETURN_IF_ERROR(read_toml(text, [&](const toml::table& file) { return read_tables(file, training); }));
  return training;
}

TrainingAmount amount_of(const TrainingStep& training, const TrainingGroups& groups) {
  const auto& [model, step] = training;
  const LayerCosts costs(training, groups);
  double flops = costs.head_flops();
  for (int layer = 0; layer < model.layers; ++layer)
    flops += costs.attention_flops() + (costs.has_experts(layer) ? costs.expert_flops() : costs.mlp_flops());
  const double passes = 3.0 * step.microbatches;  // the backward pass counts twice
  const double ranks = groups.tp * groups.cp * static_cast<double>(groups.data_ranks);
  return {.flops = passes * flops * ranks,
          .tokens = static_cast<double>(step.sequence) * step.microbatch * step.microbatches * groups.data_ranks};
}

Result<Schedule> training_schedule(const TrainingStep& training, const TrainingGroups& groups, const Machine& machine,
                                   const topology::Topology& topology, std::size_t slot_bytes) {
  ACCORD_RETURN_IF_ERROR(check(training, groups, machine));
  return TrainingSchedule(training, groups, machine, topology, slot_bytes).build();
}

}  // namespace accord::sim
