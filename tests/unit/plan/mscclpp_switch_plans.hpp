#pragma once
// MSCCL++ execution plans that go through a switch, written from the description of the format.

#include "unit/plan/mscclpp_plans.hpp"

namespace accord::plan::testing {

/// Through a switch: each rank sums its chunk of all inputs and writes the sum to all ranks, in place.
inline Text switch_in_place(int n) {
  Text plan("allreduce", "Simple", true, n, n, n, 0);
  plan.add_switch("i");
  plan.meet("rlxsignal", "rlxwait");
  for (int r = 0; r < n; ++r)
    plan.ops(r).push_back(Text::switch_op("glres", Text::at_switch(0, r), Text::at_switch(0, r)));
  plan.meet("rlxsignal", "rlxwait");
  return plan;
}

/// The same from copies in scratch, into the outputs.
inline Text switch_from_scratch(int n) {
  Text plan("allreduce", "Simple", false, n, n, n, n);
  plan.add_switch("s");
  plan.add_switch("o");
  for (int r = 0; r < n; ++r)
    plan.ops(r).push_back(Text::op("copy", Json::array({Text::own("i", 0, n)}), Json::array({Text::own("s", 0, n)})));
  plan.meet();
  for (int r = 0; r < n; ++r)
    plan.ops(r).push_back(Text::switch_op("glres", Text::at_switch(0, r), Text::at_switch(1, r)));
  plan.meet();
  return plan;
}

/// Each rank writes its part to the outputs of all ranks at once.
inline Text switch_all_gather(int n, bool in_place) {
  Text plan("allgather", "Simple", in_place, n, 2, 2 * n, 0);
  plan.add_switch("o");
  plan.meet("rlxsignal", "rlxwait");
  for (int r = 0; r < n; ++r)
    plan.ops(r).push_back(Text::switch_op("gstore", Text::own("i", 0, 2), Text::at_switch(0, 2 * r, 2)));
  plan.meet();
  return plan;
}

/// Packets to the scratch of all ranks, without signals.
inline Text switch_packets_all_gather(int n) {
  Text plan("allgather", "LL", false, n, 1, n, n);
  plan.add_switch("s");
  for (int r = 0; r < n; ++r) {
    plan.ops(r).push_back(Text::op("cpkt", Json::array({Text::own("i", 0)}), Json::array({Text::own("s", r)})));
    plan.ops(r).push_back(Text::switch_op("gstorepkt", Text::own("s", r), Text::at_switch(0, r)));
    for (int p = 0; p < n; ++p)
      plan.ops(r).push_back(Text::op("upkt", Json::array({Text::own("s", p)}), Json::array({Text::own("o", p)})));
  }
  return plan;
}

/// Returns the plans that go through a switch.
inline std::vector<NamedText> switch_plans(int n) {
  return {{"switch_in_place", switch_in_place(n)},
          {"switch_from_scratch", switch_from_scratch(n)},
          {"switch_all_gather", switch_all_gather(n, false)},
          {"switch_all_gather_in_place", switch_all_gather(n, true)},
          {"switch_packets_all_gather", switch_packets_all_gather(n)}};
}

}  // namespace accord::plan::testing
