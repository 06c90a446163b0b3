#pragma once
// The environment of a program's steps on the CPU.

#include "engine/host/divided_attention.hpp"
#include "engine/host/expert_exchange.hpp"
#include "engine/host/key_value_cache.hpp"
#include "engine/host/thread_pool.hpp"
#include "engine/program/tensor.hpp"

namespace accord::engine::host {

struct Run : TargetRun {
  ThreadPool& pool;
  const KeyValueCache* cache = nullptr;             ///< of a program with cached attention
  ExpertExchanges* exchanges = nullptr;             ///< of a program whose ranks have different rows
  AttentionExchange* attention_exchange = nullptr;  ///< of a program whose ranks divide the tokens of sequences

  explicit Run(ThreadPool& threads) : pool(threads) {}
};

/// REQUIRES: the program's target is the CPU.
inline const Run& run_of(const Execution& execution) { return static_cast<const Run&>(*execution.target); }
inline ThreadPool& pool_of(const Execution& execution) { return run_of(execution).pool; }

}  // namespace accord::engine::host
