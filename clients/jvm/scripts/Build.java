import java.io.IOException;
import java.io.PrintStream;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.time.LocalDateTime;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashSet;
import java.util.HexFormat;
import java.util.List;
import java.util.Set;
import java.util.regex.Pattern;
import java.util.spi.ToolProvider;
import java.util.stream.Stream;
import java.util.zip.CRC32;
import java.util.zip.Deflater;
import java.util.zip.ZipEntry;
import java.util.zip.ZipOutputStream;
import kotlin.metadata.Attributes;
import kotlin.metadata.Visibility;
import kotlin.metadata.jvm.KotlinClassMetadata;
import org.jetbrains.org.objectweb.asm.AnnotationVisitor;
import org.jetbrains.org.objectweb.asm.ClassReader;
import org.jetbrains.org.objectweb.asm.ClassVisitor;
import org.jetbrains.org.objectweb.asm.ClassWriter;
import org.jetbrains.org.objectweb.asm.FieldVisitor;
import org.jetbrains.org.objectweb.asm.Label;
import org.jetbrains.org.objectweb.asm.MethodVisitor;
import org.jetbrains.org.objectweb.asm.Opcodes;

/**
 * Compiles the client, its tests and the examples, and makes the jar: all in this one JVM, because a compiler's start costs more than
 * these sources do. Nothing is done where the sources are those of the last time.
 *
 *     java -cp 'node_modules/kotlin-compiler/lib/*' scripts/Build.java
 *
 * The tests see what is internal in the client; the examples see the jar alone, as a program that uses it does.
 */
class Build {
    /** Kept below by `Build` itself: the size that the project promises. */
    static final long JAR_BYTES_MAX = 120 * 1024;

    static final Path LIB = Path.of("node_modules/kotlin-compiler/lib");
    static final Path OUT = Path.of("build");
    static final String STDLIB = LIB.resolve("kotlin-stdlib.jar").toString();

    public static void main(String[] args) throws Exception {
        Path stamp = OUT.resolve("stamp");
        String sources = digest();
        if (Files.exists(stamp) && Files.readString(stamp).equals(sources)) {
            System.out.println("[jvm] nothing to compile");
            return;
        }
        delete(OUT);
        Files.createDirectories(OUT);
        String client = OUT.resolve("client").toString();
        String jar = OUT.resolve("sessile-client.jar").toString();
        kotlin(client, STDLIB, "src", "-module-name", "sessile");
        lean(Path.of(client), OUT.resolve("lean"));
        jar(Path.of(jar), files(OUT.resolve("lean"), false));
        jar(OUT.resolve("sessile-client-sockets.jar"), files(OUT.resolve("lean"), true));
        String tests = OUT.resolve("test").toString();
        kotlin(tests, path(client, STDLIB), "test", "-Xfriend-paths=" + client);
        String examples = OUT.resolve("examples").toString();
        kotlin(examples, path(jar, STDLIB), "examples");
        tool("javac", "-Xlint:all", "-Werror", "--release", "11", "-d", examples, "-cp", path(jar, STDLIB), "examples/JavaExample.java");
        long size = Files.size(Path.of(jar));
        System.out.printf("[jvm] %s: %d bytes of %d%n", jar, size, JAR_BYTES_MAX);
        if (size > JAR_BYTES_MAX) fail("the jar is larger than " + JAR_BYTES_MAX + " bytes");
        Files.writeString(stamp, sources);
    }

    static void kotlin(String out, String classpath, String sources, String... more) throws Exception {
        List<String> arguments = new ArrayList<>(List.of(more));
        arguments.addAll(List.of("-no-stdlib", "-no-reflect", "-jvm-target", "11", "-Xjdk-release=11", "-Werror", "-progressive", "-jvm-default=no-compatibility"));
        arguments.addAll(List.of("-Xno-param-assertions", "-Xno-call-assertions", "-Xno-receiver-assertions"));
        arguments.addAll(List.of("-d", out, "-cp", classpath));
        try (Stream<Path> files = Files.walk(Path.of(sources))) {
            files.map(Path::toString).filter(name -> name.endsWith(".kt")).sorted().forEach(arguments::add);
        }
        Class<?> type = Class.forName("org.jetbrains.kotlin.cli.jvm.K2JVMCompiler");
        Object compiler = type.getDeclaredConstructor().newInstance();
        Object code = type.getMethod("exec", PrintStream.class, String[].class).invoke(compiler, System.err, arguments.toArray(new String[0]));
        if (!code.toString().equals("OK")) fail(sources + ": " + code);
    }

    /**
     * Copies what was compiled as a program needs it: without names of local variables, notes of inlined lines, generics of what is
     * private, and Kotlin's metadata, without which a class is to Kotlin what it is to Java, in every version of Kotlin. What is internal
     * is hidden from compilers. The first line of each method stays, and what may be null. Half of the size goes.
     */
    static void lean(Path from, Path to) throws Exception {
        Set<String> called = called(from);
        try (Stream<Path> files = Files.walk(from);
                URLClassLoader loader = new URLClassLoader(new URL[] {from.toUri().toURL()}, Build.class.getClassLoader())) {
            for (Path file : files.filter(each -> each.toString().endsWith(".class")).toList()) {
                Path target = to.resolve(from.relativize(file));
                Files.createDirectories(target.getParent());
                ClassReader reader = new ClassReader(Files.readAllBytes(file));
                if (file.toString().endsWith("Kt.class") && hasOnlyConstants(reader)) continue;
                ClassWriter writer = new ClassWriter(0);
                Class<?> type = Class.forName(reader.getClassName().replace('/', '.'), false, loader);
                reader.accept(new Lean(writer, isPublished(type), called), 0);
                Files.write(target, writer.toByteArray());
            }
        }
    }

    /** What stands in them was copied to where it is used. */
    static boolean hasOnlyConstants(ClassReader reader) {
        List<String> methods = new ArrayList<>();
        reader.accept(new ClassVisitor(Opcodes.ASM9) {
            @Override
            public MethodVisitor visitMethod(int access, String name, String type, String signature, String[] exceptions) {
                methods.add(name);
                return null;
            }
        }, 0);
        return methods.isEmpty();
    }

    /** Every method that some class calls. */
    static Set<String> called(Path folder) throws IOException {
        Set<String> called = new HashSet<>();
        try (Stream<Path> files = Files.walk(folder)) {
            for (Path file : files.filter(each -> each.toString().endsWith(".class")).toList()) {
                new ClassReader(Files.readAllBytes(file)).accept(new ClassVisitor(Opcodes.ASM9) {
                    @Override
                    public MethodVisitor visitMethod(int access, String name, String type, String signature, String[] exceptions) {
                        return new MethodVisitor(Opcodes.ASM9) {
                            @Override
                            public void visitMethodInsn(int code, String owner, String name, String type, boolean isInterface) {
                                called.add(name + type);
                            }
                        };
                    }
                }, 0);
            }
        }
        return called;
    }

    static boolean isPublished(Class<?> type) {
        for (Class<?> outer = type; outer != null; outer = outer.getEnclosingClass()) {
            kotlin.Metadata said = outer.getAnnotation(kotlin.Metadata.class);
            if (said == null || !(KotlinClassMetadata.readStrict(said) instanceof KotlinClassMetadata.Class read)) return false;
            if (Attributes.getVisibility(read.getKmClass()) != Visibility.PUBLIC) return false;
        }
        return true;
    }

    private static final class Lean extends ClassVisitor {
        /** A program outside may name the class. */
        private final boolean isPublished;
        private final Set<String> called;

        Lean(ClassVisitor next, boolean isPublished, Set<String> called) {
            super(Opcodes.ASM9, next);
            this.isPublished = isPublished;
            this.called = called;
        }

        @Override
        public void visitSource(String source, String debug) {
            super.visitSource(source, null);
        }

        @Override
        public AnnotationVisitor visitAnnotation(String type, boolean isVisible) {
            return type.startsWith("Lkotlin/") ? null : super.visitAnnotation(type, isVisible);
        }

        /** Generics, and what may be null, of what a program outside may call. */
        private boolean isShown(int access) {
            return isPublished && (access & (Opcodes.ACC_PUBLIC | Opcodes.ACC_PROTECTED)) != 0 && (access & Opcodes.ACC_SYNTHETIC) == 0;
        }

        @Override
        public FieldVisitor visitField(int access, String name, String type, String signature, Object value) {
            FieldVisitor next = super.visitField(access, name, type, isShown(access) ? signature : null, value);
            return isShown(access) ? next : new FieldVisitor(Opcodes.ASM9, next) {
                @Override
                public AnnotationVisitor visitAnnotation(String type, boolean isVisible) {
                    return null;
                }
            };
        }

        @Override
        public MethodVisitor visitMethod(int access, String name, String type, String signature, String[] exceptions) {
            if (name.endsWith("$default") && !called.contains(name + type)) return null; // for Kotlin with its metadata
            boolean isShown = isShown(access) && name.indexOf('$') < 0;
            int hidden = name.indexOf('$') < 0 ? 0 : Opcodes.ACC_SYNTHETIC;
            return new MethodVisitor(Opcodes.ASM9, super.visitMethod(access | hidden, name, type, isShown ? signature : null, exceptions)) {
                private boolean hasLine;

                /** A method's first line, for who reads a trace. */
                @Override
                public void visitLineNumber(int line, Label start) {
                    if (!hasLine) super.visitLineNumber(line, start);
                    hasLine = true;
                }

                @Override
                public void visitLocalVariable(String name, String type, String signature, Label start, Label end, int index) {}

                @Override
                public AnnotationVisitor visitAnnotation(String type, boolean isVisible) {
                    return isShown && type.endsWith("Nullable;") ? super.visitAnnotation(type, isVisible) : null;
                }

                @Override
                public AnnotationVisitor visitParameterAnnotation(int parameter, String type, boolean isVisible) {
                    return isShown && type.endsWith("Nullable;") ? super.visitParameterAnnotation(parameter, type, isVisible) : null;
                }
            };
        }
    }

    /** The WebSocket for Android is a jar of its own: others have the JDK's. */
    static List<Path> files(Path folder, boolean isForSockets) throws IOException {
        try (Stream<Path> files = Files.walk(folder)) {
            return files.filter(Files::isRegularFile).filter(file -> SOCKETS.matcher(file.getFileName().toString()).find() == isForSockets).sorted().toList();
        }
    }

    static final Pattern SOCKETS = Pattern.compile("^(SocketTransport|PlainSocket|Violation)\\b");

    /** The same bytes from the same sources: no times, in order. */
    static void jar(Path jar, List<Path> files) throws IOException {
        try (ZipOutputStream out = new ZipOutputStream(Files.newOutputStream(jar))) {
            out.setLevel(9);
            entry(out, "META-INF/MANIFEST.MF", "Manifest-Version: 1.0\r\n\r\n".getBytes());
            for (Path file : files) entry(out, OUT.resolve("lean").relativize(file).toString(), Files.readAllBytes(file));
        }
    }

    /** Its sizes are said before its bytes, which takes less than saying them behind. */
    static void entry(ZipOutputStream out, String name, byte[] bytes) throws IOException {
        CRC32 sum = new CRC32();
        sum.update(bytes);
        Deflater deflater = new Deflater(9, true);
        deflater.setInput(bytes);
        deflater.finish();
        long packed = 0;
        for (byte[] part = new byte[8192]; !deflater.finished(); ) packed += deflater.deflate(part);
        deflater.end();
        ZipEntry entry = new ZipEntry(name);
        entry.setTimeLocal(LocalDateTime.of(2026, 1, 1, 0, 0));
        entry.setSize(bytes.length);
        entry.setCompressedSize(packed);
        entry.setCrc(sum.getValue());
        out.putNextEntry(entry);
        out.write(bytes);
        out.closeEntry();
    }

    static void tool(String name, String... arguments) {
        int code = ToolProvider.findFirst(name).orElseThrow().run(System.out, System.err, arguments);
        if (code != 0) fail(name + " ended with " + code);
    }

    static String path(String... parts) {
        return String.join(System.getProperty("path.separator"), parts);
    }

    static void fail(String why) {
        System.err.println("[jvm] " + why);
        System.exit(1);
    }

    static String digest() throws Exception {
        MessageDigest digest = MessageDigest.getInstance("SHA-256");
        for (String root : List.of("src", "test", "examples", "scripts", "package-lock.json")) {
            try (Stream<Path> files = Files.walk(Path.of(root))) {
                for (Path file : files.filter(Files::isRegularFile).sorted().toList()) {
                    digest.update((file + "\0").getBytes());
                    digest.update(Files.readAllBytes(file));
                }
            }
        }
        return HexFormat.of().formatHex(digest.digest());
    }

    static void delete(Path folder) throws IOException {
        if (!Files.exists(folder)) return;
        try (Stream<Path> files = Files.walk(folder)) {
            for (Path file : files.sorted(Comparator.reverseOrder()).toList()) Files.delete(file);
        }
    }
}
