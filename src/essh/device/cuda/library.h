#pragma once
#include <string>
#include <vector>

namespace essh::cuda {

// A shared library that is loaded on first use and stays loaded. GPU libraries have hundreds of megabytes, which CPU
// runs and machines without a GPU do not need.
class Library {
 public:
  // Loads the first of `files` that is found; Error{Device} names the files and the purpose of the library.
  Library(const std::vector<std::string>& files, const char* purpose);

  // A function; the type of the caller's pointer is its type.
  class Symbol {
   public:
    explicit Symbol(void* address) : address_(address) {}
    template <class F>
    operator F*() const {
      return reinterpret_cast<F*>(address_);
    }

   private:
    void* address_;
  };
  Symbol find(const char* name) const;

 private:
  std::string file_;
  void* handle_ = nullptr;
};

}  // namespace essh::cuda
