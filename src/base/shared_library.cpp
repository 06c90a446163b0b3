#include "base/shared_library.hpp"

#include <dlfcn.h>

#include <filesystem>

namespace accord {

std::string library_file_of(const void* symbol) {
  Dl_info place = {};
  return dladdr(symbol, &place) != 0 && place.dli_fname != nullptr ? place.dli_fname : std::string();
}

std::string path_in_site_packages(std::string_view path) {
  std::error_code unread;
  const std::filesystem::path here =
      std::filesystem::weakly_canonical(library_file_of(reinterpret_cast<const void*>(&path_in_site_packages)), unread);
  return (here.parent_path().parent_path().parent_path() / path).string();
}

}  // namespace accord
