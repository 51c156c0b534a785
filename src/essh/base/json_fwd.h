#pragma once

namespace essh {

class Json;

}  // namespace essh
