import { defineConfig } from "vite";

// Stable names and relative URLs: the same files work at any path, and can be inlined into one HTML file.
export default defineConfig({
  base: "./",
  build: {
    outDir: "../src/aureole/explorer/explorer_page",
    emptyOutDir: true,
    sourcemap: false,
    modulePreload: false,
    target: "es2022",
    assetsInlineLimit: 0,
    rollupOptions: {
      output: {
        entryFileNames: "assets/explorer.js",
        chunkFileNames: "assets/[name].js",
        assetFileNames: "assets/explorer[extname]",
      },
    },
  },
});
