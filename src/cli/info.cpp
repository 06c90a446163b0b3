// `accord info`: the library's own facts (accord/info.hpp), and PyTorch, which only the command looks for, by asking
// python_program() for its packages. Nothing of torch is imported, so the answer takes tens of milliseconds.
#include "accord/info.hpp"

#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/commands.hpp"
#include "cli/python_program.hpp"

namespace accord::cli {
namespace {

// The output of a shell command, and whether it succeeded.
struct Answer {
  std::string text;
  bool ok = false;
};

Answer answer_of(const char* command) {
  Answer answer;
  FILE* pipe = popen(command, "r");
  if (pipe == nullptr) return answer;
  std::array<char, 256> bytes;
  std::size_t got = 0;
  while ((got = fread(bytes.data(), 1, bytes.size(), pipe)) > 0) answer.text.append(bytes.data(), got);
  answer.ok = pclose(pipe) == 0;
  while (!answer.text.empty() && answer.text.back() == '\n') answer.text.pop_back();
  return answer;
}

PartInfo torch_part() {
  // The shell finds the same program as python_program().
  const Answer python = answer_of("command -v \"${PYTHON_EXEC:-python3}\" 2>/dev/null");
  if (!python.ok || python.text.empty()) return {"torch", false, fmt::format("there is no {}", python_program())};
  const Answer torch = answer_of(
      "\"${PYTHON_EXEC:-python3}\" -c \"import importlib.metadata as m, importlib.util as u;"
      " print(m.version('torch'), '(' + u.find_spec('torch').origin + ')')\" 2>/dev/null");
  if (torch.ok) return {"torch", true, torch.text};
  return {"torch", false,
          fmt::format("{} has no package torch; pip install torch, or set PYTHON_EXEC to another Python", python.text)};
}

void print_parts(const char* title, const std::vector<PartInfo>& parts) {
  fmt::print("{}\n", title);
  for (const PartInfo& part : parts)
    fmt::print("  {:<10} {:<4} {}\n", part.name, part.available ? "yes" : "no", part.detail);
}

void print_table(const Info& info) {
  fmt::print("accord {} ({}, {}{}{})\n", info.version, info.build_type, info.compiler,
             info.sanitizers.empty() ? "" : ", ", info.sanitizers);
  fmt::print("machine    {} processors, {} cores, {} memory node{}; kernels run on {}\n", info.cpus, info.cores,
             info.numa_nodes, info.numa_nodes == 1 ? "" : "s", info.instruction_set);
  print_parts("transports", info.transports);
  print_parts("parts", info.parts);
  fmt::print("variables\n");
  for (const VariableInfo& variable : info.variables) {
    fmt::print("  {:<18} {:<10} {} ({})\n", variable.name, variable.value.empty() ? "-" : variable.value,
               variable.meaning, variable.is_set ? "default " + variable.default_value : "default");
  }
  if (!info.configuration.ok()) fmt::print("  error: {}\n", info.configuration.message());
}

int print_info(bool as_json) {
  Info found = info();
  found.parts.push_back(torch_part());
  if (as_json) {
    fmt::print("{}\n", nlohmann::ordered_json::parse(to_json(found)).dump(2));
  } else {
    print_table(found);
  }
  return found.configuration.ok() ? kSuccess : kFailure;
}

}  // namespace

void add_info(CLI::App& app, Action& chosen) {
  CLI::App* info =
      app.add_subcommand("info", "What this build and machine have, and why each missing part is disabled");
  const auto as_json = std::make_shared<bool>(false);
  info->add_flag("--json", *as_json, "One JSON object");
  info->callback([as_json, &chosen] { chosen = [as_json] { return print_info(*as_json); }; });
}

}  // namespace accord::cli
