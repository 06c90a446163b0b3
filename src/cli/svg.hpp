#pragma once
// Common parts of the command's SVG documents: plain SVG 1.1, no scripts, only the viewer's fonts.

#include <string>
#include <string_view>

namespace accord::cli {

/// Escapes `text` for the inside of an element or attribute. Characters other than printable ASCII become "?".
std::string svg_escaped(std::string_view text);

/// Returns the head of a document of that size in pixels, up to the white background. `definitions`: the inside of
/// <defs>.
std::string svg_head(int width, int height, std::string_view definitions);

}  // namespace accord::cli
