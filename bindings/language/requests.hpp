#pragma once
// Requests in token ids: their options by name, their events, and the counters of a model that answers them.

#include <nanobind/nanobind.h>

#include <vector>

#include "accord/generation.hpp"

namespace accord::python {

/// Reads token ids from a list, or from an array or tensor of one dimension.
std::vector<TokenId> prompt_of(nanobind::handle prompt);

/// Creates a request with these options. An unknown option is an error that gives the nearest name.
GenerationRequest request_of(std::vector<TokenId> prompt, const nanobind::kwargs& options);

void bind_requests(nanobind::module_& module);

}  // namespace accord::python
