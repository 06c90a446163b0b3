#include "sim/journal.hpp"

namespace accord::sim {

std::string_view to_string(OpKind kind) {
  switch (kind) {
    case OpKind::kWork: return "work";
    case OpKind::kSend: return "send";
    case OpKind::kNotify: return "signal";
    case OpKind::kWait: return "wait";
    case OpKind::kBarrier: return "barrier";
    case OpKind::kCompute: return "compute";
  }
  return "unknown";
}

std::string_view to_string(Reason reason) {
  switch (reason) {
    case Reason::kOrder: return "order";
    case Reason::kProcessor: return "processor";
    case Reason::kBarrier: return "barrier";
    case Reason::kSignal: return "signal";
    case Reason::kMessage: return "message";
    case Reason::kRound: return "round";
    case Reason::kCore: return "core";
  }
  return "unknown";
}

}  // namespace accord::sim
