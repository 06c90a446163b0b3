#pragma once
// A plan laid out for drawing: the column of each step, and what ranks get from each other.

#include <string>
#include <vector>

#include "accord/status.hpp"
#include "plan/plan.hpp"
#include "plan/step_rules.hpp"

namespace accord::cli {

/// One step and its position.
struct DrawnStep {
  plan::StepPlace place;
  plan::StepKind kind = plan::StepKind::kCopy;
  int column = 0;     ///< from 0; behind everything it waits for
  std::string text;   ///< "cp i1>s1", short enough for a box
  std::string title;  ///< the step in words
};

/// An input from another rank's step: data that it reads, or a signal.
struct Arrow {
  std::size_t from = 0;  ///< index into Drawing::steps
  std::size_t to = 0;
  bool is_signal = false;
};

struct Drawing {
  std::vector<std::string> rows;  ///< "rank 1", or "rank 1 lane 0" if a rank has several
  std::vector<int> first_row;     ///< indexed by rank
  int columns = 0;
  std::vector<DrawnStep> steps;
  std::vector<Arrow> arrows;
};

/// Lays out one round. Fails with kInvalidArgument if some lane waits forever; verify() says why.
Result<Drawing> draw(const plan::Plan& plan);

/// Draws rows of ranks and columns of steps, in blocks of at most `width` characters.
std::string to_text(const Drawing& drawing, std::size_t width = 120);

/// Returns an SVG document: rows of ranks, boxes of steps, arrows for what is sent between ranks (dashed: signals).
std::string to_svg(const Drawing& drawing, const plan::Plan& plan);

/// Explains the short texts.
std::string drawing_legend();

}  // namespace accord::cli
