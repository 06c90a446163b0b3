#pragma once
// Whether a call makes sense, and what it says to peers.

#include <complex>

#include "accord/call.hpp"
#include "exec/domain.hpp"
#include "plan/bounds.hpp"

namespace accord::comm {

/// "all_gather_v"
std::string name_of(const Call& call);

/// Checks what one rank alone can see: pointers, overlaps, counts that fit each other, dtypes, ops, devices, ranks. `rank` of `size` calls.
Status check_call(const Call& call, Rank rank, int size);

/// What this rank's input is multiplied by; 1 unless the op is premul_sum. REQUIRES: check_call is ok.
std::complex<double> factor_of(const Call& call);

/// What peers have to agree on, as `rank` of `size` says it. REQUIRES: check_call is ok.
exec::RequestRecord record_of(const Call& call, Rank rank, int size);

/// This rank's parts; `longest_part` is 0 where the ranks have to tell each other first. REQUIRES: check_call is ok, and division is kByCounts.
plan::Extent extent_of(const Call& call, Rank rank);

}  // namespace accord::comm
