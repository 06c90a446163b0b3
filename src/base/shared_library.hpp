#pragma once
// Where shared libraries lie.

#include <string>
#include <string_view>

namespace accord {

/// The file that `symbol` was loaded from; empty if that is not known.
std::string library_file_of(const void* symbol);

/// `path` in the site-packages that accord/lib/libaccord.so.0 lies in when accord was installed as a wheel; where it was
/// not, a path at which there need not be anything.
std::string path_in_site_packages(std::string_view path);

}  // namespace accord
