#pragma once
// An engine's graph: core ATen ops over named values, with symbolic shapes. docs/engine-format.md describes its JSON.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "accord/buffer.hpp"
#include "accord/status.hpp"

namespace accord::engine {

/// A whole number that may depend on symbols: a sum of products, e.g. "s0*12 + 1". An immutable value.
class SymbolicInt {
 public:
  struct Term {
    std::int64_t factor = 0;
    std::vector<std::string> symbols;  ///< sorted; a power repeats its symbol
    bool operator==(const Term&) const = default;
  };
  /// The numbers from `min` to `max`, both included.
  struct Range {
    std::int64_t min = 0;
    std::int64_t max = 0;
  };
  SymbolicInt(std::int64_t value = 0);
  /// Parses the format's grammar: numbers, symbols, + - * and parentheses. Fails with kCorrupt on anything else.
  static Result<SymbolicInt> parse(std::string_view text);

  /// Returns true if the number depends on no symbol.
  bool is_constant() const;
  std::int64_t constant() const;  ///< REQUIRES: is_constant()
  /// Fails with kInvalidArgument if a symbol is missing or the result does not fit in 64 bits.
  Result<std::int64_t> evaluate(const std::map<std::string, std::int64_t>& symbols) const;
  /// Returns bounds of the value for all symbols within their ranges. The bounds are never too narrow, and exact in
  /// the usual cases, such as products of sizes that grow with their symbols. Errors as for evaluate().
  Result<Range> range(const std::map<std::string, Range>& symbols) const;
  std::string to_string() const;
  const std::vector<Term>& terms() const { return terms_; }
  bool operator==(const SymbolicInt&) const = default;

 private:
  std::vector<Term> terms_;
};

using SymbolicShape = std::vector<SymbolicInt>;
/// Returns text such as "[batch, 12, 2*length]".
std::string shape_text(const SymbolicShape& shape);
inline constexpr std::size_t kMaxDimensions = 8;  ///< of one tensor
using ValueId = int;

/// A tensor that flows through the graph.
struct Value {
  std::string name;
  DType dtype = DType::kFloat32;
  SymbolicShape shape;
};

/// An argument of a node.
struct ValueRef {
  ValueId id = -1;
  bool operator==(const ValueRef&) const = default;
};
struct None {
  bool operator==(const None&) const = default;
};
using Argument = std::variant<None, ValueRef, SymbolicInt, double, bool, std::string, DType, std::vector<SymbolicInt>,
                              std::vector<ValueRef>>;

/// One op. Its arguments are stored by name, as in ATen's schema; defaults are left out.
struct Node {
  std::string op;  ///< "aten.linear.default", or "accord.all_reduce" after partitioning
  std::map<std::string, Argument> arguments;
  std::vector<ValueId> outputs;
  std::string module;  ///< the module path in the source model, e.g. "encoder.layer.0.attention.self.query"
  std::string source;  ///< file:line in the source model, for messages
};

/// A weight: a value that is read from the package.
struct Parameter {
  ValueId value = -1;
  std::string tensor;  ///< its name in the manifest
};

/// A dimension that may differ from run to run.
struct Symbol {
  std::string name;
  std::int64_t min = 1;
  std::int64_t max = 1;
};

/// The graph itself is a value: partitioning and the passes copy and rewrite it. Nodes are in an executable order.
struct Graph {
  std::vector<Symbol> symbols;
  std::vector<Value> values;
  std::vector<ValueId> inputs;
  std::vector<Parameter> parameters;
  std::vector<Node> nodes;
  std::vector<ValueId> outputs;
};

/// Parses graph.json and checks it: every value is produced exactly once and before it is used (so there are no
/// cycles), symbols, dtypes and argument kinds are known, and all sizes are valid. Fails with kCorrupt, naming the
/// node. Does not check which ops exist: that is check_ops().
Result<Graph> parse_graph(std::string_view json);

}  // namespace accord::engine
