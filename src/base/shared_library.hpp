#pragma once
// Locations of shared libraries.

#include <string>
#include <string_view>

namespace accord {

/// The file that `symbol` was loaded from; empty if unknown.
std::string library_file_of(const void* symbol);

/// `path` within the site-packages directory that contains accord/lib/libaccord.so.0, if accord was installed as a
/// wheel; otherwise a path that may not exist.
std::string path_in_site_packages(std::string_view path);

}  // namespace accord
