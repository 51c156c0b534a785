#pragma once
#include <string>
#include <vector>

namespace essh::cuda {

// A shared library that is loaded when it is first needed and stays until the program ends: the libraries of a GPU are
// hundreds of megabytes that a run on the CPU, or a machine without them, does not have to carry.
class Library {
 public:
  // The first of `files` that the loader finds; Error{Device} names them and what the library is for.
  Library(const std::vector<std::string>& files, const char* purpose);

  // A function of any type: the caller's pointer says which.
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
