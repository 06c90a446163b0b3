// The beginning of every document, and the escaping of all text in it.
#include "cli/svg.hpp"

#include <fmt/format.h>

namespace accord::cli {

std::string svg_escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '&': out += "&amp;"; break;
      case '"': out += "&quot;"; break;
      default: out += static_cast<unsigned char>(c) >= 0x20 && static_cast<unsigned char>(c) < 0x7f ? c : '?';
    }
  }
  return out;
}

std::string svg_head(int width, int height, std::string_view definitions) {
  return fmt::format(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
      "font-family=\"monospace\" font-size=\"12\">\n"
      "{2}"
      "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n",
      width, height, definitions.empty() ? "" : fmt::format("<defs>{}</defs>\n", definitions));
}

}  // namespace accord::cli
