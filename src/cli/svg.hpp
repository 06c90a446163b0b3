#pragma once
// What the SVG documents of the command share: plain SVG 1.1, no scripts, no fonts but the viewer's.

#include <string>
#include <string_view>

namespace accord::cli {

/// `text` for the inside of an element or attribute; what is no printable ASCII becomes "?".
std::string svg_escaped(std::string_view text);

/// The head of a document of that size in pixels, up to the white ground. `definitions`: the inside of <defs>.
std::string svg_head(int width, int height, std::string_view definitions);

}  // namespace accord::cli
