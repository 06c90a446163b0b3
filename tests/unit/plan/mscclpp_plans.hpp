#pragma once
// MSCCL++ execution plans for the tests, written from the description of the format.

#include <fmt/format.h>

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace accord::plan::testing {

using Json = nlohmann::ordered_json;

/// Common to all plans here: each rank has one memory channel to each peer, in the order of the peers, and
/// reaches the input, output and scratch of each, in one thread block unless a test adds more.
class ExecutionPlanText {
 public:
  ExecutionPlanText(std::string_view collective, std::string_view protocol, bool in_place, int ranks, int input,
                    int output, int scratch)
      : ranks_(ranks) {
    json = {{"name", fmt::format("{}_{}", collective, protocol)},
            {"collective", collective},
            {"protocol", protocol},
            {"inplace", in_place},
            {"reuse_resources", false},
            {"gpus", Json::array()},
            {"num_threads_per_block", 1024},
            {"use_double_scratch_buffer", false},
            {"buffer_alignment", 16},
            {"min_message_size", 0},
            {"max_message_size", 18446744073709551615ULL}};
    for (int rank = 0; rank < ranks; ++rank) {
      Json peers = Json::array(), buffers = Json::array();
      for (int peer = 0; peer < ranks; ++peer) {
        if (peer == rank) continue;
        peers.push_back(peer);
        for (const char* type : {"i", "o", "s"})
          buffers.push_back({{"rank", peer}, {"type", type}, {"access_channel_types", {"memory"}}});
      }
      json["gpus"].push_back({{"id", rank},
                              {"input_chunks", input},
                              {"output_chunks", output},
                              {"scratch_chunks", scratch},
                              {"threadblocks", Json::array()},
                              {"channels", Json::array({{{"channel_type", "memory"}, {"connected_to", peers}}})},
                              {"remote_buffers", buffers},
                              {"semaphores", Json::array()}});
      add_block(rank);
    }
  }

  /// Adds a thread block to a rank, with all its channels and buffers.
  void add_block(int rank) {
    Json channels = Json::array(), buffers = Json::array();
    for (int i = 0; i < ranks_ - 1; ++i) channels.push_back(i);
    for (int i = 0; i < 3 * (ranks_ - 1); ++i) buffers.push_back(i);
    Json& blocks = json["gpus"][rank]["threadblocks"];
    blocks.push_back(
        {{"id", blocks.size()},
         {"ops", Json::array()},
         {"channels", Json::array({{{"channel_type", "memory"}, {"channel_ids", channels}}})},
         {"remote_buffer_refs", Json::array({{{"access_channel_type", "memory"}, {"remote_buffer_ids", buffers}}})}});
  }

  Json& ops(int rank, int block = 0) { return json["gpus"][rank]["threadblocks"][block]["ops"]; }

  /// The rank's own memory.
  static Json own(std::string_view type, int index, int size = 1) {
    return {{"type", type}, {"index", index}, {"size", size}};
  }
  /// Memory of a peer.
  static Json of(int rank, int peer, std::string_view type, int index, int size = 1) {
    const int buffer = 3 * (peer < rank ? peer : peer - 1) + (type == "i" ? 0 : type == "o" ? 1 : 2);
    return {{"buffer_id", buffer}, {"index", index}, {"size", size}};
  }
  static Json op(std::string_view name, Json sources, Json destinations) {
    return {{"name", name}, {"channel_type", "memory"}, {"src_buff", sources}, {"dst_buff", destinations}};
  }
  /// Adds a switch channel over one memory of all ranks, or of some, as the last channel of each of their thread
  /// blocks.
  void add_switch(std::string_view type, std::vector<int> members = {}) {
    if (members.empty())
      for (int rank = 0; rank < ranks_; ++rank) members.push_back(rank);
    for (const int rank : members) {
      const Json group = {{"size", members.size()}, {"ranks", members}};
      json["gpus"][rank]["channels"].push_back(
          {{"channel_type", "switch"}, {"buffer_type", type}, {"rank_groups", Json::array({group})}});
      int& count = switches_[rank];
      for (Json& block : json["gpus"][rank]["threadblocks"])
        block["channels"].push_back({{"channel_type", "switch"}, {"channel_ids", Json::array({count})}});
      ++count;
    }
  }
  /// Memory of all ranks of a switch channel.
  static Json at_switch(int channel, int index, int size = 1) {
    return {{"switch_channel_id", channel}, {"index", index}, {"size", size}};
  }
  static Json switch_op(std::string_view name, Json source, Json destination) {
    return {{"name", name},
            {"channel_type", "switch"},
            {"src_buff", Json::array({source})},
            {"dst_buff", Json::array({destination})}};
  }
  /// "signal", "wait", "rlxsignal" or "rlxwait" with some peers.
  static Json event(std::string_view name, int rank, const std::vector<int>& peers) {
    Json channels = Json::array();
    for (const int peer : peers) channels.push_back(peer < rank ? peer : peer - 1);
    return {{"name", name}, {"channel_type", "memory"}, {"channel_ids", channels}};
  }
  std::vector<int> peers_of(int rank) const {
    std::vector<int> peers;
    for (int peer = 0; peer < ranks_; ++peer)
      if (peer != rank) peers.push_back(peer);
    return peers;
  }
  /// Synchronizes all ranks.
  void meet(std::string_view signal = "signal", std::string_view wait = "wait") {
    for (int rank = 0; rank < ranks_; ++rank) {
      ops(rank).push_back(event(signal, rank, peers_of(rank)));
      ops(rank).push_back(event(wait, rank, peers_of(rank)));
    }
  }

  std::string text() const { return json.dump(); }

  Json json;

 private:
  int ranks_;
  std::map<int, int> switches_ = {};  // by rank: how many switch channels
};

using Text = ExecutionPlanText;

/// Every rank reads the inputs of all ranks.
inline Text all_pairs(int n) {
  Text plan("allreduce", "Simple", false, n, 1, 1, 0);
  plan.meet("rlxsignal", "rlxwait");
  for (int r = 0; r < n; ++r) {
    Json sources = Json::array({Text::own("i", 0)});
    for (const int p : plan.peers_of(r)) sources.push_back(Text::of(r, p, "i", 0));
    plan.ops(r).push_back(Text::op("rre", sources, Json::array({Text::own("o", 0)})));
  }
  plan.meet();
  return plan;
}

/// Each rank reduces its chunk, then all ranks get it, in place.
inline Text two_shot_in_place(int n) {
  Text plan("allreduce", "Simple", true, n, n, n, 0);
  plan.meet();
  for (int r = 0; r < n; ++r) {
    Json sources = Json::array({Text::own("i", r)});
    for (const int p : plan.peers_of(r)) sources.push_back(Text::of(r, p, "i", r));
    plan.ops(r).push_back({{"name", "nop"}});
    plan.ops(r).push_back(Text::op("rre", sources, Json::array({Text::own("i", r)})));
  }
  plan.meet();
  for (int r = 0; r < n; ++r) {
    for (const int p : plan.peers_of(r))
      plan.ops(r).push_back(Text::op("get", Json::array({Text::of(r, p, "i", p)}), Json::array({Text::own("i", p)})));
  }
  plan.meet();
  return plan;
}

/// The sums travel round the ring: they are put into the next rank's scratch and added there, then the results go
/// round.
inline Text ring_in_place(int n) {
  Text plan("allreduce", "Simple", true, n, n, n, n);
  plan.meet("rlxsignal", "rlxwait");
  for (int step = 0; step < 2 * (n - 1); ++step) {
    const bool adds = step < n - 1;
    for (int r = 0; r < n; ++r) {
      const int next = (r + 1) % n, previous = (r + n - 1) % n;
      const int out = (r + 2 * n - step) % n, in = (out + n - 1) % n;
      Json& ops = plan.ops(r);
      if (adds) {
        ops.push_back(Text::op("put", Json::array({Text::own("i", out)}), Json::array({Text::of(r, next, "s", out)})));
      } else {
        ops.push_back(Text::op("put", Json::array({Text::own("i", out)}), Json::array({Text::of(r, next, "i", out)})));
      }
      ops.push_back(Text::event("signal", r, {next}));
      ops.push_back(Text::event("wait", r, {previous}));
      if (adds)
        ops.push_back(
            Text::op("re", Json::array({Text::own("i", in), Text::own("s", in)}), Json::array({Text::own("i", in)})));
    }
  }
  return plan;
}

/// The same with a single operation that adds and sends.
inline Text ring_of_reduce_sends(int n) {
  Text plan("reducescatter", "Simple", false, n, n, 1, n);
  plan.meet();
  for (int r = 0; r < n; ++r) {
    const int next = (r + 1) % n, previous = (r + n - 1) % n;
    Json& ops = plan.ops(r);
    const int first = previous;
    ops.push_back(Text::op("pws", Json::array({Text::own("i", first)}), Json::array({Text::of(r, next, "s", first)})));
    ops.back()["channel_ids"] = Text::event("signal", r, {next})["channel_ids"];
    for (int step = 1; step < n; ++step) {
      const int chunk = (r + 2 * n - 1 - step) % n;
      ops.push_back(Text::event("wait", r, {previous}));
      const Json sources = Json::array({Text::own("i", chunk), Text::own("s", chunk)});
      if (step == n - 1) {
        ops.push_back(Text::op("re", sources, Json::array({Text::own("o", 0)})));
      } else {
        ops.push_back(Text::op("res", sources, Json::array({Text::own("s", chunk), Text::of(r, next, "s", chunk)})));
        ops.push_back(Text::event("signal", r, {next}));
      }
    }
  }
  return plan;
}

inline Text packets_all_pairs(int n) {
  Text plan("allreduce", "LL", false, n, 1, 1, n);
  for (int r = 0; r < n; ++r) {
    Json destinations = Json::array(), sources = Json::array({Text::own("i", 0)});
    for (const int p : plan.peers_of(r)) {
      destinations.push_back(Text::of(r, p, "s", r));
      sources.push_back(Text::own("s", p));
    }
    plan.ops(r).push_back(Text::op("ppkt", Json::array({Text::own("i", 0)}), destinations));
    plan.ops(r).push_back(Text::op("repkt", sources, Json::array({Text::own("o", 0)})));
  }
  return plan;
}

/// The default plan of MSCCL++ for small messages: reduce-scatter by packets, sums passed on by packets, in place.
inline Text packets_two_shot_in_place(int n) {
  Text plan("allreduce", "LL", true, n, n, n, 2 * n);
  for (int r = 0; r < n; ++r) {
    Json sources = Json::array({Text::own("i", r)}), destinations = Json::array({Text::own("i", r)});
    for (const int p : plan.peers_of(r)) {
      plan.ops(r).push_back(Text::op("ppkt", Json::array({Text::own("i", p)}), Json::array({Text::of(r, p, "s", r)})));
      sources.push_back(Text::own("s", p));
      destinations.push_back(Text::of(r, p, "s", n + r));
    }
    plan.ops(r).push_back(Text::op("respkt", sources, destinations));
    for (const int p : plan.peers_of(r))
      plan.ops(r).push_back(Text::op("upkt", Json::array({Text::own("s", n + p)}), Json::array({Text::own("i", p)})));
  }
  return plan;
}

/// Packets travel around the ring: each rank reads the packet that it received, keeps it and forwards it.
inline Text packets_ring_all_gather(int n) {
  Text plan("allgather", "LL", false, n, 1, n, n);
  for (int r = 0; r < n; ++r) {
    const int next = (r + 1) % n;
    Json& ops = plan.ops(r);
    ops.push_back(Text::op("copy", Json::array({Text::own("i", 0)}), Json::array({Text::own("o", r)})));
    ops.push_back(Text::op("cpkt", Json::array({Text::own("i", 0)}), Json::array({Text::own("s", r)})));
    for (int step = 0; step < n - 1; ++step) {
      const int out = (r + n - step) % n, in = (r + 2 * n - 1 - step) % n;
      ops.push_back(Text::op("rppkt", Json::array({Text::own("s", out)}), Json::array({Text::of(r, next, "s", out)})));
      ops.push_back(Text::op("upkt", Json::array({Text::own("s", in)}), Json::array({Text::own("o", in)})));
    }
  }
  return plan;
}

/// Sums by packets round the ring, with a copy of each in packets that is sent on.
inline Text packets_ring_reduce_scatter(int n) {
  Text plan("reducescatter", "LL", false, n, n, 1, 2 * n);
  for (int r = 0; r < n; ++r) {
    const int next = (r + 1) % n, first = (r + n - 1) % n;
    Json& ops = plan.ops(r);
    ops.push_back(Text::op("ppkt", Json::array({Text::own("i", first)}), Json::array({Text::of(r, next, "s", first)})));
    for (int step = 1; step < n; ++step) {
      const int chunk = (r + 2 * n - 1 - step) % n;
      const Json sources = Json::array({Text::own("i", chunk), Text::own("s", chunk)});
      if (step == n - 1) {
        ops.push_back(Text::op("recpkt", sources, Json::array({Text::own("o", 0), Text::own("s", n + chunk)})));
      } else {
        ops.push_back(
            Text::op("recspkt", sources,
                     Json::array({Text::own("s", chunk), Text::own("s", n + chunk), Text::of(r, next, "s", chunk)})));
      }
    }
  }
  return plan;
}

/// Every rank puts its part into the output of all others.
inline Text put_all_gather(int n, bool in_place) {
  Text plan("allgather", "Simple", in_place, n, 2, 2 * n, 0);
  plan.meet("rlxsignal", "rlxwait");
  for (int r = 0; r < n; ++r) {
    for (const int p : plan.peers_of(r))
      plan.ops(r).push_back(
          Text::op("put", Json::array({Text::own("i", 0, 2)}), Json::array({Text::of(r, p, "o", 2 * r, 2)})));
    if (!in_place)
      plan.ops(r).push_back(
          Text::op("copy", Json::array({Text::own("i", 0, 2)}), Json::array({Text::own("o", 2 * r, 2)})));
  }
  plan.meet();
  return plan;
}

inline Text get_all_to_all(int n) {
  Text plan("alltoall", "Simple", false, n, n, n, 0);
  plan.meet();
  for (int r = 0; r < n; ++r) {
    plan.ops(r).push_back(Text::op("copy", Json::array({Text::own("i", r)}), Json::array({Text::own("o", r)})));
    for (const int p : plan.peers_of(r))
      plan.ops(r).push_back(Text::op("get", Json::array({Text::of(r, p, "i", r)}), Json::array({Text::own("o", p)})));
  }
  plan.meet();
  return plan;
}

/// Two thread blocks of each rank share every operation. A third one notifies the peers, and a semaphore notifies it.
inline Text shared_blocks(int n) {
  Text plan("allreduce", "Simple", false, n, 1, 1, 1);
  for (int r = 0; r < n; ++r) {
    plan.add_block(r);
    plan.add_block(r);
    plan.json["gpus"][r]["semaphores"] = Json::array({{{"init_value", 0}}, {{"init_value", 0}}});
    for (const int block : {0, 1}) {
      const Json share = {{"tb_id", block}, {"tbg_size", 2}};
      Json& ops = plan.ops(r, block);
      ops.push_back(Text::op("copy", Json::array({Text::own("i", 0)}), Json::array({Text::own("s", 0)})));
      ops.back()["tbg_info"] = share;
      ops.push_back({{"name", "sem_release"}, {"semaphore_ids", {0}}});
      ops.push_back({{"name", "barrier"}, {"barrier_id", 0}, {"num_threadblocks", 3}});
      Json sources = Json::array({Text::own("s", 0)});
      for (const int p : plan.peers_of(r)) sources.push_back(Text::of(r, p, "s", 0));
      Json inner = Text::op("rre", sources, Json::array({Text::own("o", 0)}));
      inner["tbg_info"] = share;
      ops.push_back({{"name", "pipeline"},
                     {"iter_context", {{"unit_size", 4096}, {"num_chunks", 1}}},
                     {"ops", Json::array({inner})}});
      ops.push_back({{"name", "barrier"}, {"barrier_id", 1}, {"num_threadblocks", 2}});
    }
    Json& teller = plan.ops(r, 2);
    teller.push_back({{"name", "sem_acquire"}, {"semaphore_ids", {0}}});
    teller.push_back({{"name", "sem_acquire"}, {"semaphore_ids", {0}}});
    teller.push_back(Text::event("signal", r, plan.peers_of(r)));
    teller.push_back(Text::event("wait", r, plan.peers_of(r)));
    teller.push_back({{"name", "barrier"}, {"barrier_id", 0}, {"num_threadblocks", 3}});
  }
  return plan;
}

/// One thread block sends data that another one of the rank overwrites if input and output are the same memory.
inline Text late_reader() {
  Text plan("alltoall", "Simple", false, 2, 2, 2, 1);
  for (int r = 0; r < 2; ++r) {
    const int peer = 1 - r;
    plan.add_block(r);
    plan.ops(r, 0).push_back(Text::event("wait", r, {peer}));
    plan.ops(r, 0).push_back(Text::op("copy", Json::array({Text::own("s", 0)}), Json::array({Text::own("o", peer)})));
    plan.ops(r, 0).push_back(Text::op("copy", Json::array({Text::own("i", r)}), Json::array({Text::own("o", r)})));
    plan.ops(r, 1).push_back(
        Text::op("put", Json::array({Text::own("i", peer)}), Json::array({Text::of(r, peer, "s", 0)})));
    plan.ops(r, 1).push_back(Text::event("signal", r, {peer}));
  }
  return plan;
}

struct NamedText {
  std::string name;
  Text plan;
};

/// Returns all of these plans for `n` ranks.
inline std::vector<NamedText> execution_plans(int n) {
  std::vector<NamedText> all = {{"all_pairs", all_pairs(n)},
                                {"two_shot_in_place", two_shot_in_place(n)},
                                {"ring_in_place", ring_in_place(n)},
                                {"ring_of_reduce_sends", ring_of_reduce_sends(n)},
                                {"packets_all_pairs", packets_all_pairs(n)},
                                {"packets_two_shot_in_place", packets_two_shot_in_place(n)},
                                {"packets_ring_all_gather", packets_ring_all_gather(n)},
                                {"packets_ring_reduce_scatter", packets_ring_reduce_scatter(n)},
                                {"put_all_gather", put_all_gather(n, false)},
                                {"put_all_gather_in_place", put_all_gather(n, true)},
                                {"get_all_to_all", get_all_to_all(n)},
                                {"shared_blocks", shared_blocks(n)}};
  if (n == 2) all.push_back({"late_reader", late_reader()});
  return all;
}

}  // namespace accord::plan::testing
