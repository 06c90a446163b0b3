#pragma once
// Steps that look up rows. Ids outside their range are reported when the run ends.

#include "engine/ops/index.hpp"

namespace accord::engine {

struct Node;

/// The table may be a float8 weight (float8_products.hpp). Otherwise y has its dtype.
Step gather_rows_step(const Node* node, const RowLookup& lookup);

}  // namespace accord::engine
