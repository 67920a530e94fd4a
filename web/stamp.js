// Writes the hash of the sources next to the build output, so that a test can detect a stale build without Node.
import { createHash } from "node:crypto";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";

const names = ["index.html", "package.json", "tsconfig.json", "vite.config.js"];
names.push(...readdirSync("src").map((name) => `src/${name}`));
const hash = createHash("sha256");
for (const name of names.sort()) {
  hash.update(`${name}\n`);
  hash.update(readFileSync(name));
}
writeFileSync("../src/aureole/explorer/explorer_page/SOURCE", `${hash.digest("hex")}\n`);
