// Time is divided into columns. A column of a rank has the color of what the rank does for the longest part of it, and
// a column of a link is the darker the more of its capacity is used.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>

#include "base/rounding.hpp"
#include "cli/plan/commands.hpp"
#include "cli/sim/recording.hpp"
#include "cli/svg.hpp"

namespace accord::cli {
namespace {

constexpr int kColumns = 1000, kLeft = 190, kTop = 70, kRight = 30;
constexpr int kRowHeight = 14, kHeadHeight = 44, kAxisHeight = 24;
constexpr std::size_t kRankRows = 48, kLinkRows = 32;
constexpr int kShades = 10;

struct Activity {
  std::string_view name, color;
};
// By sim::OpKind.
constexpr std::array<Activity, 6> kActivities = {{{"copies and reductions", "#4878a8"},
                                                  {"sends", "#e08214"},
                                                  {"signals", "#8073ac"},
                                                  {"receives", "#5aae61"},
                                                  {"barriers of lanes", "#999999"},
                                                  {"computation", "#c7b42e"}}};

/// Seconds by column.
class Columns {
 public:
  Columns() : seconds_(to_size(kColumns)) {}

  /// Spreads `amount` evenly over the time from `begin` to `end`, of which each column lasts `width`.
  void add(double begin, double end, double width, double amount) {
    const double length = std::max(end - begin, 1e-15);
    const auto first = static_cast<int>(begin / width), last = std::min(static_cast<int>(end / width), kColumns - 1);
    for (int column = first; column <= last; ++column) {
      const double from = std::max(begin, column * width), to = std::min(end, (column + 1) * width);
      seconds_[to_size(column)] += amount * (last == first ? 1 : std::max(0.0, to - from) / length);
    }
  }
  double operator[](int column) const { return seconds_[to_size(column)]; }

 private:
  std::vector<double> seconds_;
};

// At most `limit` of the numbers below `count`, evenly spread.
std::vector<std::size_t> some_of(std::size_t count, std::size_t limit) {
  std::vector<std::size_t> chosen(std::min(count, limit));
  for (std::size_t i = 0; i < chosen.size(); ++i) chosen[i] = i * count / chosen.size();
  return chosen;
}

class Timeline {
 public:
  explicit Timeline(const SimRecording& recording)
      : recording_(recording),
        width_(recording.times.seconds / kColumns),
        ranks_(some_of(to_size(recording.times.simulated_ranks), kRankRows)) {}

  std::string text() {
    body_ += fmt::format("<text x=\"12\" y=\"28\" font-size=\"16\">{}</text>\n", svg_escaped(recording_.title));
    add_legend();
    int y = kTop;
    add_ranks(y);
    y += static_cast<int>(ranks_.size()) * kRowHeight;
    add_axis(y);
    y += kAxisHeight;
    add_links(y);
    return svg_head(kLeft + kColumns + kRight, y + 20, "") + body_ + "</svg>\n";
  }

 private:
  static int center(int top, std::size_t row) { return top + static_cast<int>(row) * kRowHeight + kRowHeight / 2; }

  void add_legend() {
    int x = kLeft;
    for (const Activity& one : kActivities) {
      body_ += fmt::format(
          "<rect x=\"{}\" y=\"42\" width=\"12\" height=\"12\" fill=\"{}\"/>"
          "<text x=\"{}\" y=\"52\">{}</text>\n",
          x, one.color, x + 17, one.name);
      x += 17 + 8 * static_cast<int>(one.name.size()) + 20;
    }
    body_ += fmt::format(
        "<line x1=\"{}\" y1=\"48\" x2=\"{}\" y2=\"48\" stroke=\"#c00000\" stroke-width=\"2\"/>"
        "<text x=\"{}\" y=\"52\">critical path</text>\n",
        x, x + 16, x + 21);
  }

  void add_label(int top, std::size_t row, const std::string& name) {
    body_ += fmt::format("<text x=\"{}\" y=\"{}\" font-size=\"10\" text-anchor=\"end\">{}</text>\n", kLeft - 6,
                         center(top, row) + 4, svg_escaped(name));
  }

  // Draws columns of one color as one rectangle. `color(column)`: empty where nothing is drawn.
  template <typename Color, typename Title>
  void add_row(int top, std::size_t row, Color color, Title title) {
    for (int begin = 0; begin < kColumns;) {
      const std::string fill = color(begin);
      int end = begin + 1;
      while (end < kColumns && color(end) == fill) ++end;
      if (!fill.empty())
        body_ +=
            fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{}\"><title>{}</title></rect>\n",
                        kLeft + begin, top + static_cast<int>(row) * kRowHeight + 1, end - begin, kRowHeight - 2, fill,
                        svg_escaped(title(begin, end)));
      begin = end;
    }
  }

  std::string period(int begin, int end) const {
    return fmt::format("{} to {}", time_text(begin * width_), time_text(end * width_));
  }

  void add_ranks(int top) {
    std::map<Rank, std::array<Columns, kActivities.size()>> columns;
    for (const std::size_t rank : ranks_) columns.try_emplace(static_cast<Rank>(rank));
    for (const sim::JournalEntry& entry : recording_.journal.entries)
      if (const auto found = columns.find(entry.rank); found != columns.end())
        found->second[static_cast<std::size_t>(entry.kind)].add(entry.begin, entry.end, width_,
                                                                entry.end - entry.begin);
    for (std::size_t row = 0; row < ranks_.size(); ++row) {
      const auto rank = static_cast<Rank>(ranks_[row]);
      const auto& of_rank = columns.at(rank);
      const auto longest = [&](int column) {  // -1: the rank mostly waits
        int best = -1;
        double most = 0, sum = 0;
        for (std::size_t kind = 0; kind < kActivities.size(); ++kind) {
          sum += of_rank[kind][column];
          if (of_rank[kind][column] <= most) continue;
          most = of_rank[kind][column];
          best = static_cast<int>(kind);
        }
        return sum < width_ / 2 ? -1 : best;
      };
      add_label(top, row, fmt::format("rank {}", rank));
      add_row(
          top, row,
          [&](int column) {
            const int kind = longest(column);
            return std::string(kind < 0 ? "#eeeeee" : kActivities[to_size(kind)].color);
          },
          [&](int begin, int end) {
            const int kind = longest(begin);
            return fmt::format("rank {}, {}: {}", rank, period(begin, end),
                               kind < 0 ? "waits" : kActivities[to_size(kind)].name);
          });
    }
    add_path(top);
  }

  // Steps of ranks that are not shown are drawn on the row of the rank before them.
  void add_path(int top) {
    std::string points;
    std::string last;
    for (const sim::PathStep& step : recording_.path.steps) {
      const sim::JournalEntry& entry = recording_.journal.entries[step.entry];
      const auto after = std::upper_bound(ranks_.begin(), ranks_.end(), static_cast<std::size_t>(entry.rank));
      const int y = center(top, static_cast<std::size_t>(after - ranks_.begin() - 1));
      for (const double time : {entry.begin, entry.end}) {
        std::string point = fmt::format("{:.1f},{} ", kLeft + time / width_, y);
        if (point != last) points += point;
        last = std::move(point);
      }
    }
    body_ += fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"#c00000\" stroke-width=\"1.5\"/>\n", points);
  }

  void add_axis(int top) {
    const double total = recording_.times.seconds;
    double tick = std::pow(10, std::floor(std::log10(total / 5)));
    for (const double factor : {5.0, 2.0})
      if (tick * factor <= total / 5) {
        tick *= factor;
        break;
      }
    for (int i = 0; i * tick <= total; ++i) {
      const double x = kLeft + i * tick / width_;
      body_ += fmt::format(
          "<line x1=\"{0:.1f}\" y1=\"{1}\" x2=\"{0:.1f}\" y2=\"{2}\" stroke=\"#000000\"/>"
          "<text x=\"{0:.1f}\" y=\"{3}\" font-size=\"10\" text-anchor=\"middle\">{4}</text>\n",
          x, top + 2, top + 7, top + 18, i == 0 ? "0" : time_text(i * tick));
    }
  }

  // The busiest links. `top` moves to the end of the section.
  void add_links(int& top) {
    std::map<std::int32_t, Columns> columns;
    for (const sim::JournalTransfer& transfer : recording_.journal.transfers)
      for (const std::int32_t link : recording_.journal.routes[transfer.route])
        columns[link].add(transfer.begin, transfer.end, width_, transfer.bytes);
    if (columns.empty()) return;
    const sim::Times& times = recording_.times;
    const auto used = [&](std::int32_t link) {
      return times.link_bytes[to_size(link)] / times.links[to_size(link)].bytes_per_second;
    };
    std::vector<std::int32_t> links;
    for (const auto& [link, unused] : columns) links.push_back(link);
    std::stable_sort(links.begin(), links.end(), [&](auto a, auto b) { return used(a) > used(b); });
    const std::size_t all = links.size();
    links.resize(std::min(all, kLinkRows));
    body_ +=
        fmt::format("<text x=\"12\" y=\"{}\" font-size=\"14\">Use of {} links{}</text>\n", top + 32,
                    links.size() < all ? fmt::format("the busiest {} of {}", links.size(), all) : fmt::to_string(all),
                    ", white: none, black: all of the capacity");
    top += kHeadHeight;
    for (std::size_t row = 0; row < links.size(); ++row) {
      const sim::Link& link = times.links[to_size(links[row])];
      const Columns& bytes = columns.at(links[row]);
      const auto part = [&](int column) { return std::min(1.0, bytes[column] / (width_ * link.bytes_per_second)); };
      add_label(top, row, link.name);
      add_row(
          top, row,
          [&](int column) {
            const int shade = static_cast<int>(std::ceil(part(column) * kShades - 1e-9));
            const int light = 255 - shade * 255 / kShades;
            return shade == 0 ? std::string() : fmt::format("#{0:02x}{0:02x}{0:02x}", light);
          },
          [&](int begin, int end) {
            double mean = 0;
            for (int column = begin; column < end; ++column) mean += part(column) / (end - begin);
            return fmt::format("{}, {}: {:.0f} %", link.name, period(begin, end), 100 * mean);
          });
    }
    top += static_cast<int>(links.size()) * kRowHeight;
    add_axis(top);
    top += kAxisHeight;
  }

  const SimRecording& recording_;
  double width_;  // seconds of a column
  std::vector<std::size_t> ranks_;
  std::string body_;
};

}  // namespace

std::string sim_timeline(const SimRecording& recording) { return Timeline(recording).text(); }

}  // namespace accord::cli
